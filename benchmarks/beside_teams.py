"""What a short operator on all cores takes alone, beside idle teams of threads, and after these have ended.

    python benchmarks/beside_teams.py --out beside_teams.json

Once a process has more OpenMP threads than cores, libgomp lets waiting threads spin 100 times only, whatever
GOMP_SPINCOUNT says, and every operator has to wake them; where OMP_WAIT_POLICY is ACTIVE, 1000 times. Each
environment has a process of its own; they take turns. Needs torch only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from measuring import machine_line

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "default": {},
    "GOMP_SPINCOUNT=5000": {"GOMP_SPINCOUNT": "5000"},
    "… and OMP_WAIT_POLICY=ACTIVE": {"GOMP_SPINCOUNT": "5000", "OMP_WAIT_POLICY": "ACTIVE"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
NUM_CALLS, NUM_TEAMS = 2000, 2


def measured() -> dict[str, float]:
    """Microseconds of an addition of 300,000 numbers, in this process."""
    import torch

    width = torch.get_num_threads()
    x = torch.randn(300_000)
    out = torch.empty_like(x)

    def typical_us() -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(NUM_CALLS):
                torch.add(x, 1.0, out=out)
            times.append((time.perf_counter() - began) / NUM_CALLS)
        return 1e6 * statistics.median(times)

    ended, started = threading.Event(), threading.Semaphore(0)

    def rest() -> None:
        torch.set_num_threads(width)
        torch.add(x, 1.0)
        started.release()
        ended.wait()

    found = {"alone": typical_us()}
    threads = [threading.Thread(target=rest) for _ in range(NUM_TEAMS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    found["beside idle teams"] = typical_us()
    ended.set()
    for thread in threads:
        thread.join()
    found["after them"] = typical_us()
    return found


def fresh(variables: dict[str, str]) -> dict[str, float]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, env=env | variables, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measured()))
        return
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ENVIRONMENTS}
    for _ in range(given.rounds):
        for name, variables in ENVIRONMENTS.items():
            rounds[name].append(fresh(variables))
    kept: dict[str, Any] = {"machine": machine_line(), "microseconds": rounds}
    print(kept["machine"])
    for name, ones in rounds.items():
        medians = {what: statistics.median(one[what] for one in ones) for what in ones[0]}
        print(f"{name:32}", "  ".join(f"{what} {us:6.1f} µs" for what, us in medians.items()))
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
