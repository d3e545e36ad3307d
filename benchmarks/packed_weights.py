"""Measure the gain of packed weights in `corewise.malleable`: with them, without, and plain execution.

    python benchmarks/packed_weights.py --rounds 3 --out packed.json [WORKLOAD ...]

Needs torch and numpy only. The variants are timed in turns, each time in a fresh process, as in
`malleable_gain.py`, all with the environment that `malleable` recommends.
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
# Models of LSTMs have no weights to pack.
LSTMS = ("ensemble", "ensemble-64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(INFERENCE))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("packed_weights.json"))
    given = parser.parse_args()
    unknown = set(given.workloads) - set(INFERENCE)
    if unknown:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; known: {', '.join(INFERENCE)}")
    campaign = Campaign(given.out, given.cores, time.monotonic() + 1e6, given.rounds)
    variants: Dict[str, Dict[str, Any]] = {
        "plain": {"method": "pool", "points": [(1, campaign.cores)]},
        "not packed": {"method": "malleable", "pack": False},
        "packed": {"method": "malleable", "pack": True},
    }
    print(campaign.kept["machine"])
    for name in given.workloads or [one for one in INFERENCE if one not in LSTMS]:
        kept = campaign.kept["workloads"].setdefault(name, {"ms": {variant: [] for variant in variants}, "runs": {}})
        for number in range(given.rounds):
            for variant, order in variants.items():
                if len(kept["ms"][variant]) > number:
                    continue
                answer = campaign.ask({"workload": name, **SHORT, **order}, "active", "retain")
                facts = answer.pop("facts", None)
                if "problem" in answer:
                    raise SystemExit(f"{name}, {variant}: {answer['problem']}")
                [times] = answer.values()
                kept["ms"][variant].append(1e3 * statistics.median(times))
                if facts is not None:
                    kept["runs"][variant] = facts.get("chosen", facts["reason"])
                campaign.save()
        show_workload(name, kept)
    campaign.close()
    ratios = [compute_gain(one["ms"], "not packed") for one in campaign.kept["workloads"].values()]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"packed over not packed, geometric mean of {len(ratios)}: {mean:.2f}")


def compute_gain(ms: Dict[str, Any], base: str) -> float:
    """Return the speed-up of packed weights over `base`."""
    return statistics.median(ms[base]) / statistics.median(ms["packed"])


def show_workload(name: str, kept: Dict[str, Any]) -> None:
    """Print one line of the table."""
    ms = kept["ms"]
    medians = ", ".join(f"{variant} {statistics.median(ms[variant]):.2f}" for variant in ms)
    ratios = f"{compute_gain(ms, 'plain'):.2f} of plain, {compute_gain(ms, 'not packed'):.2f} of not packed"
    print(f"{name}: {medians} ms; {ratios}; runs {kept['runs'].get('packed', '')}", flush=True)


if __name__ == "__main__":
    main()
