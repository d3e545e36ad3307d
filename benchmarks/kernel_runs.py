"""Shared code of the kernel benchmarks: jobs of our kernels as trials make them, and sides that take turns.

Needs numpy, the framework under test and Corewise's source folder on the path, nothing else.
"""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
if SOURCE.is_dir() and str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))

from corewise.measured.parameters import TrialParameters  # noqa: E402
from corewise.measured.runtimes.base import Job, RankContext  # noqa: E402
from corewise.measured.runtimes.registry import find_runtime  # noqa: E402

# Pause between turns: threads of the previous side spin for up to 200 ms.
SETTLE_S = 0.3


def prepare_kernel_job(
    kernel: str, runtime: str, dtype: str, num_threads: int, args: dict[str, Any], **settings: Any
) -> Job:
    """Prepare the job that a trial of this kernel would run, and check its numbers."""
    found = find_runtime(runtime)
    found.warm()
    own = {f"args.{name}": value for name, value in args.items()}
    point = {"workload": kernel, "mode": "infer", "runtime": runtime, "dtype": dtype, "threads": num_threads}
    params = TrialParameters.from_mapping({**point, "batch": 1, **settings, **own})
    found.warm_for(params)
    job = found.prepare(params, RankContext(0, 1, "/tmp", num_threads))
    check = job.check()
    if not check.passed:
        raise SystemExit(f"{kernel} on {runtime} in {dtype}: wrong numbers, {check}")
    return job


def serve(job: Job) -> None:
    """Read a number of steps per line, run them, and print their times."""
    job.step()
    print("ready", flush=True)
    for line in sys.stdin:
        times_s = []
        for _ in range(int(line)):
            began = time.perf_counter()
            job.step()
            times_s.append(time.perf_counter() - began)
        print(json.dumps(times_s), flush=True)


class Side:
    """A process that takes turns with others.

    `turns` holds the seconds of each step of each turn.
    """

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.turns: list[list[float]] = []
        self._process = subprocess.Popen(
            command, env={**os.environ, **env}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._read_line()

    def turn(self, num_steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        self.turns.append(json.loads(self._read_line()))

    def close(self) -> None:
        self._process.communicate()

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()} before its turn")
        return line


def take_turns(sides: list[Side], num_rounds: int, num_steps: int) -> None:
    """Run steps of every side in every round; another side begins each round."""
    for number in range(num_rounds):
        start = number % len(sides)
        for side in sides[start:] + sides[:start]:
            time.sleep(SETTLE_S)
            side.turn(num_steps)


def find_best_s(side: Side) -> float:
    """Return the shortest step of all turns."""
    return min(min(turn) for turn in side.turns)


def compare_speed(ours: Side, peer: Side) -> tuple[float, float]:
    """Return our speed over the peer's: by each side's best step, and by the best of a turn, median over rounds."""
    rounds = [min(theirs) / min(mine) for mine, theirs in zip(ours.turns, peer.turns, strict=True)]
    return find_best_s(peer) / find_best_s(ours), statistics.median(rounds)


def describe_machine() -> str:
    """Return the machine, its load and the date in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")  # noqa: UP017
    num_cpus = len(os.sched_getaffinity(0))
    return f"{num_cpus} CPUs of {model}, load {load}, Python {platform.python_version()}, {now}"
