"""Compare malleable widths with the best fixed setting: inter x intra x waiting x allocator, and plain 1xN.

    python benchmarks/malleable_gain.py --cores 16 --seconds 1500 --out gain.json [WORKLOAD ...]

Needs torch and numpy only. The grid is screened in one environment, its best points in the others. Then the
best five settings and `corewise.malleable` are timed in turns, each time in a fresh process. It is forked from
one that has loaded torch under the same environment and computed nothing. *Inter* means that branches run
concurrently: for each point both a pool of Python threads and TorchScript's fork count. Results are written to
the file as they arrive, so an interrupted run resumes; `--show` prints the table of a file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from malleable_points import LEAST_CALLS, LEAST_S, WAITING, WORKLOADS, Nursery

NARROW = ("alexnet", "resnet50", "transformer")
# The environment in which the whole grid is screened.
FIRST_ENVIRONMENT = ("active5000", "retain")
OURS = "malleable active retain"
SCREEN_CALLS, SCREEN_S = 3, 0.5
# Settings of the first environment that are tried in the others.
NUM_POOLS, NUM_FORKS = 10, 2
NUM_FINALISTS = 5


def list_powers(limit: int) -> List[int]:
    """List 1, 2, 4, ... up to the limit, and the limit."""
    return sorted({2**n for n in range(limit.bit_length()) if 2**n <= limit} | {limit})


class Campaign:
    """One run over workloads, saved to a file after each result."""

    def __init__(self, out: Path, cores: int, end: float, rounds: int) -> None:
        self.out, self.end, self.rounds = out.resolve(), end, rounds
        self.cpus = sorted(os.sched_getaffinity(0))[:cores]
        self.cores = len(self.cpus)
        self.kept: Dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        self.kept.setdefault("machine", f"{self.cores} cores of {read_processor_name()}")
        self.kept.setdefault("workloads", {})
        self.cache = str(self.out.with_suffix("")) + "-cache"
        self.nurseries: Dict[Tuple[str, str], Nursery] = {}

    def save(self) -> None:
        aside = self.out.with_suffix(".part")
        aside.write_text(json.dumps(self.kept, indent=1) + "\n")
        os.replace(aside, self.out)

    def has_time(self, seconds: float = 0.0) -> bool:
        return time.monotonic() + seconds < self.end

    def ask(self, order: Dict[str, Any], waiting: str, allocator: str) -> Any:
        limit = max(20.0, min(240.0, self.end - time.monotonic() + 20))
        key = (waiting, allocator)
        if key not in self.nurseries:
            self.nurseries[key] = Nursery(waiting, allocator, self.cpus, self.cache)
        return self.nurseries[key].ask({**order, "limit": limit})

    def close(self) -> None:
        for nursery in self.nurseries.values():
            nursery.close()

    def screen_grid(self, name: str) -> None:
        """Screen the whole grid in one environment, then its best points in the others."""
        kept = self.kept["workloads"].setdefault(name, {"screen": {}, "screened": [], "rounds": {}, "facts": []})
        inters = [inter for inter in list_powers(min(16, self.cores)) if inter == 1 or name not in NARROW]
        grid = [(i, w) for i in inters for w in list_powers(self.cores) if i * w <= 2 * self.cores]
        # Settings that use all cores usually are the best: they come first.
        grid.sort(key=lambda one: abs(math.log2(one[0] * one[1] / self.cores)))
        environments = [(waiting, allocator) for allocator in ("retain", "stock") for waiting in WAITING]
        environments.sort(key=lambda one: one != FIRST_ENVIRONMENT)
        for waiting, allocator in environments:
            is_first = (waiting, allocator) == FIRST_ENVIRONMENT
            # Plain settings are measured with the pools.
            for method in ("pool", "fork") if allocator == "retain" else ("pool",):
                points = [point for point in grid if method == "pool" or point[0] > 1]
                if not is_first:
                    best = self._select_best_points(kept["screen"], method)
                    points = [point for point in points if point in best or point == (1, self.cores)]
                # Threads of TorchScript keep their first width, so each of its points needs a process.
                for some in [points] if method == "pool" else [[point] for point in points]:
                    if some:
                        order = {"method": method, "points": some, "workload": name}
                        self._screen_points(kept, order, waiting, allocator)
        best_names = sorted(kept["screen"], key=lambda point: kept["screen"][point])[:3]
        print(f"{name}: screened {len(kept['screen'])}: {', '.join(best_names)}", flush=True)

    def _select_best_points(self, screened: Mapping[str, float], method: str) -> List[Tuple[int, int]]:
        ours = [one for one in screened if one.endswith(" ".join(FIRST_ENVIRONMENT))]
        ours = [one for one in ours if one.startswith("fork") == (method == "fork")]
        best = sorted(ours, key=lambda point: screened[point])[: NUM_POOLS if method == "pool" else NUM_FORKS]
        shapes = [one.split()[1].split("x") for one in best]
        return [(int(inter), int(intra)) for inter, intra in shapes]

    def _screen_points(self, kept: Dict[str, Any], order: Dict[str, Any], waiting: str, allocator: str) -> None:
        shape = "x".join(map(str, order["points"][0])) if order["method"] == "fork" else "0"
        label = f"{order['method']} {shape} {waiting} {allocator}"
        if label in kept["screened"] or not self.has_time(10):
            return
        known = {"best_s": min(kept["screen"].values())} if kept["screen"] else {}
        wanted = {**order, **known, "num": SCREEN_CALLS, "seconds": SCREEN_S}
        answer = self.ask(wanted, waiting, allocator)
        if "problem" in answer:
            print(f"{order['workload']}: {label}: {answer['problem']}", flush=True)
        else:
            for point, times in answer.items():
                kept["screen"][f"{point} {waiting} {allocator}"] = statistics.median(times)
        kept["screened"].append(label)
        self.save()

    def confirm(self, name: str) -> None:
        """Time the best five and ours in turns, each time in a fresh process."""
        kept = self.kept["workloads"][name]
        ranked = sorted(kept["screen"], key=lambda point: kept["screen"][point])
        finalists = kept.setdefault("finalists", ranked[:NUM_FINALISTS])
        for number in range(self.rounds):
            for point in [OURS, *finalists]:
                taken = kept["rounds"].setdefault(point, [])
                if len(taken) > number or not self.has_time(8):
                    continue
                *parts, waiting, allocator = point.split()
                answer = self.ask(self._build_order(name, parts), waiting, allocator)
                if "problem" in answer:
                    print(f"{name}: {point}: {answer['problem']}", flush=True)
                    continue
                if "facts" in answer:
                    kept["facts"].append(answer.pop("facts"))
                [times] = answer.values()
                taken.append(statistics.median(times))
                self.save()

    def _build_order(self, name: str, parts: Sequence[str]) -> Dict[str, Any]:
        order: Dict[str, Any] = {"workload": name, "num": LEAST_CALLS, "seconds": LEAST_S, "method": "malleable"}
        if parts[0] != "malleable":
            inter, intra = (int(one) for one in parts[1].split("x"))
            order.update(method="fork" if parts[0] == "fork" else "pool", points=[(inter, intra)])
        return order


def read_processor_name() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def format_table(kept: Mapping[str, Any]) -> str:
    """Return the table of results."""
    head = ("workload", "best fixed", "ms", "malleable", "ms", "gain", "rounds", "bound", "of it", "beats", "plain")
    rows = [head]
    for name, one in kept["workloads"].items():
        ours_s = [s for point, times in one["rounds"].items() if point.startswith("malleable") for s in times]
        fixed = {p: s for p, s in one["rounds"].items() if not p.startswith("malleable") and s}
        if not ours_s or not fixed:
            continue
        medians = {point: statistics.median(times) for point, times in fixed.items()}
        best = min(medians, key=lambda point: medians[point])
        mine = statistics.median(ours_s)
        facts = one["facts"][-1] if one["facts"] else {}
        bound = facts.get("bound_s", 0.0)
        beaten = sum(s > mine for s in one["screen"].values()) / max(1, len(one["screen"]))
        plain = [s for point, s in one["screen"].items() if point.startswith("plain") and "default stock" in point]
        rows.append(
            (
                name, best, f"{1e3 * medians[best]:.2f}", facts.get("chosen", "plain"), f"{1e3 * mine:.2f}",
                f"{medians[best] / mine:.2f}", str(len(ours_s)), f"{1e3 * bound:.2f}", f"{bound / mine:.0%}",
                f"{beaten:.0%}", f"{1e3 * min(plain):.2f}" if plain else "",
            )
        )  # fmt: skip
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([kept["machine"], *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=1500.0, help="stop after this time")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes of each finalist")
    parser.add_argument("--out", type=Path, default=Path("malleable_gain.json"))
    parser.add_argument("--show", action="store_true", help="print the table of the file, measure nothing")
    given = parser.parse_args()
    unknown = set(given.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; known: {', '.join(WORKLOADS)}")
    if not given.show:
        began = time.monotonic()
        campaign = Campaign(given.out, given.cores, began + given.seconds, given.rounds)
        for name in given.workloads or WORKLOADS:
            campaign.screen_grid(name)
            campaign.confirm(name)
            print(f"{time.monotonic() - began:.0f} s", flush=True)
        campaign.close()
    print(format_table(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
