"""What the kernels' benchmarks share: jobs of our kernels as trials make them, and sides that take turns.

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

from corewise.runtimes.base import Job, RankContext  # noqa: E402
from corewise.runtimes.registry import find_runtime  # noqa: E402

SETTLE_S = 0.3  # between turns: threads of the side before spin for up to 200 ms
COMMON = {
    "mode": "infer",
    "device": "cpu",
    "processes": 1,
    "interop_threads": None,
    "batch": 1,
    "batch_scope": "process",
    "memory_format": "contiguous",
    "execution": "eager",
    "freezing": "none",
    "math": "vendor",
    "float32_precision": "default",
    "denormals": "default",
    "data": "synthetic",
    "loader_workers": 0,
    "pinned_memory": False,
}


def kernel_job(
    kernel: str, runtime: str, dtype: str, num_threads: int, args: dict[str, Any], **settings: Any
) -> Job:
    """The job a trial of this kernel would run, its numbers checked."""
    found = find_runtime(runtime)
    found.warm()
    own = {f"args.{name}": value for name, value in args.items()}
    params = {**COMMON, "workload": kernel, "runtime": runtime, "dtype": dtype, "threads": num_threads}
    params = {**params, **settings, **own}
    found.warm_for(params)
    job = found.prepare(params, RankContext(0, 1, "/tmp", num_threads))
    check = job.check()
    if not check.passed:
        raise SystemExit(f"{kernel} on {runtime} in {dtype}: wrong numbers, {check}")
    return job


def serve(job: Job) -> None:
    """Take turns: for each number that comes in, so many steps, and their times go out."""
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
    """A process that takes turns with others."""

    def __init__(self, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name = name
        self.turns: list[list[float]] = []  # seconds of each step of each turn
        self._process = subprocess.Popen(
            command, env={**os.environ, **env}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._line()

    def turn(self, num_steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        self.turns.append(json.loads(self._line()))

    def close(self) -> None:
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self._process.wait()} before its turn")
        return line


def take_turns(sides: list[Side], num_rounds: int, num_steps: int) -> None:
    """Every side steps in every round; who begins changes from round to round."""
    for number in range(num_rounds):
        start = number % len(sides)
        for side in sides[start:] + sides[:start]:
            time.sleep(SETTLE_S)
            side.turn(num_steps)


def best_s(side: Side) -> float:
    """The shortest step of all turns."""
    return min(min(turn) for turn in side.turns)


def against(ours: Side, peer: Side) -> tuple[float, float]:
    """Our speed over the peer's: by each one's best step, and by the best of a turn, median over rounds."""
    rounds = [min(theirs) / min(mine) for mine, theirs in zip(ours.turns, peer.turns, strict=True)]
    return best_s(peer) / best_s(ours), statistics.median(rounds)


def machine_line() -> str:
    """The machine, its load and the date."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "?")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes")  # noqa: UP017
    num_cpus = len(os.sched_getaffinity(0))
    return f"{num_cpus} CPUs of {model}, load {load}, Python {platform.python_version()}, {now}"
