"""What packed weights are worth to `corewise.malleable`: with them, without, and plain execution.

    python benchmarks/packed_weights.py --rounds 3 --out packed.json [WORKLOAD ...]

Needs torch and numpy only. They are timed in turns, each time in a fresh process, as `malleable_gain.py` does
it, all with the environment that `malleable` asks for.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any, Dict

from malleable_gain import Campaign
from malleable_points import LEAST_CALLS, LEAST_S, WORKLOADS

SHORT = {"num": LEAST_CALLS, "seconds": LEAST_S}
INFERENCE = [name for name, (_, _, _, mode) in WORKLOADS.items() if mode == "infer"]
LSTMS = ("ensemble", "ensemble-64")  # which have no weights to pack


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(INFERENCE))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("packed_weights.json"))
    given = parser.parse_args()
    unknown = set(given.workloads) - set(INFERENCE)
    if unknown:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; known: {', '.join(INFERENCE)}")
    campaign = Campaign(given.out, given.cores, time.monotonic() + 1e6, given.rounds)
    ways: Dict[str, Dict[str, Any]] = {
        "plain": {"way": "pool", "points": [(1, campaign.cores)]},
        "not packed": {"way": "malleable", "pack": False},
        "packed": {"way": "malleable", "pack": True},
    }
    print(campaign.kept["machine"])
    for name in given.workloads or [one for one in INFERENCE if one not in LSTMS]:
        kept = campaign.kept["workloads"].setdefault(name, {"ms": {way: [] for way in ways}, "runs": {}})
        for number in range(given.rounds):
            for way, order in ways.items():
                if len(kept["ms"][way]) > number:
                    continue
                answer = campaign.ask({"workload": name, **SHORT, **order}, "active", "retain")
                facts = answer.pop("facts", None)
                if "problem" in answer:
                    raise SystemExit(f"{name}, {way}: {answer['problem']}")
                [times] = answer.values()
                kept["ms"][way].append(1e3 * statistics.median(times))
                if facts is not None:
                    kept["runs"][way] = facts.get("chosen", facts["reason"])
                campaign.save()
        shown(name, kept)
    campaign.close()
    ratios = [gain(one["ms"], "not packed") for one in campaign.kept["workloads"].values()]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"packed over not packed, geometric mean of {len(ratios)}: {mean:.2f}")


def gain(ms: Dict[str, Any], base: str) -> float:
    """How many times as fast packed weights are."""
    return statistics.median(ms[base]) / statistics.median(ms["packed"])


def shown(name: str, kept: Dict[str, Any]) -> None:
    """One line of the table."""
    ms = kept["ms"]
    medians = ", ".join(f"{way} {statistics.median(ms[way]):.2f}" for way in ms)
    ratios = f"{gain(ms, 'plain'):.2f} of plain, {gain(ms, 'not packed'):.2f} of not packed"
    print(f"{name}: {medians} ms; {ratios}; runs {kept['runs'].get('packed', '')}", flush=True)


if __name__ == "__main__":
    main()
