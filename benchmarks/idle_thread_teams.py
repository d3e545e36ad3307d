"""Time a short operator on all cores: alone, with idle teams of threads, and after these teams have ended.

    python benchmarks/idle_thread_teams.py --out idle_thread_teams.json

If a process has more OpenMP threads than cores, libgomp lets waiting threads spin only 100 times, whatever
GOMP_SPINCOUNT says. Then every operator has to wake them. With OMP_WAIT_POLICY=ACTIVE they spin 1000 times.
Each environment has its own process, and the processes take turns. Needs torch only.
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

from measuring import describe_machine

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "default": {},
    "GOMP_SPINCOUNT=5000": {"GOMP_SPINCOUNT": "5000"},
    "… and OMP_WAIT_POLICY=ACTIVE": {"GOMP_SPINCOUNT": "5000", "OMP_WAIT_POLICY": "ACTIVE"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
NUM_CALLS, NUM_TEAMS = 2000, 2


def measure_additions() -> dict[str, float]:
    """Measure the microseconds of an addition of 300,000 numbers in this process."""
    import torch

    width = torch.get_num_threads()
    x = torch.randn(300_000)
    out = torch.empty_like(x)

    def measure_us() -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(NUM_CALLS):
                torch.add(x, 1.0, out=out)
            times.append((time.perf_counter() - began) / NUM_CALLS)
        return 1e6 * statistics.median(times)

    ended, started = threading.Event(), threading.Semaphore(0)

    def wait_idle() -> None:
        torch.set_num_threads(width)
        torch.add(x, 1.0)
        started.release()
        ended.wait()

    found = {"alone": measure_us()}
    threads = [threading.Thread(target=wait_idle) for _ in range(NUM_TEAMS)]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    found["with idle teams"] = measure_us()
    ended.set()
    for thread in threads:
        thread.join()
    found["after them"] = measure_us()
    return found


def run_fresh_process(variables: dict[str, str]) -> dict[str, float]:
    """Measure in a fresh process with these environment variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, env=env | variables, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure_additions()))
        return
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in ENVIRONMENTS}
    for _ in range(given.rounds):
        for name, variables in ENVIRONMENTS.items():
            rounds[name].append(run_fresh_process(variables))
    kept: dict[str, Any] = {"machine": describe_machine(), "microseconds": rounds}
    print(kept["machine"])
    for name, ones in rounds.items():
        medians = {what: statistics.median(one[what] for one in ones) for what in ones[0]}
        print(f"{name:32}", "  ".join(f"{what} {us:6.1f} µs" for what, us in medians.items()))
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
