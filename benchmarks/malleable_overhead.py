"""Measure the cost of handing tasks to other threads: C++ executor and Python threads, in turns.

    python benchmarks/malleable_overhead.py [--rounds 7] [--json FILE]

Needs torch and numpy only. Shapes of task graphs on up to four lanes, one core each:
chain       every task waits for one in another lane: the full hand-over
fork_join   the caller's task, one in each lane, the caller's again: as in a wide model
apart       lanes that never wait for each other: the cost of a task alone
woken       a chain of operators so long that the waiting lanes sleep
The overhead is the time of a run over the number of tasks (of one lane for `apart`), including the tiny
operator. For `woken` the time of plain execution of the same operators is subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

os.environ.setdefault("OMP_WAIT_POLICY", "ACTIVE")
# libgomp reads it when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from corewise.accelerate.capture.program import Call, Program, Ref
from corewise.accelerate.malleable.execute.cpp_executor import NativeExecutor, explain_missing_native
from corewise.accelerate.malleable.execute.python_executor import PythonExecutor
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask

NUM_TASKS = 400
NUM_LONG_TASKS = 60
TINY = (torch.ops.aten.neg.default,)
# This operator uses one thread at any width.
LONG = (torch.ops.aten.cumsum.default, 0)
LONG_ELEMENTS = 60_000
GOAL_US = {"native": 10.0, "python": 60.0}
TaskGraph = Tuple[Program, Tuple[OperatorTask, ...], LanePlan]


def build_graph(
    needs: Sequence[Sequence[int]], lanes: Sequence[int], num_cores: int, operator: Sequence[Any] = TINY
) -> TaskGraph:
    """Build a program with one operator per task and these dependencies and lanes."""
    target, *rest = operator
    calls = [
        Call(f"call_{n}", target, (Ref(before[0] + 1 if before else 0), *rest), {}, (n + 1,))
        for n, before in enumerate(needs)
    ]
    outputs = (Ref(len(calls)),)
    program = Program(tuple(calls), len(calls) + 1, (0,), {}, {}, outputs)
    tasks = tuple(OperatorTask((n,), tuple(before)) for n, before in enumerate(needs))
    steps = tuple(LaneStep(n, lane, tuple(needs[n])) for n, lane in enumerate(lanes))
    all_lanes = (Lane(0, num_cores), *(Lane(core, 1) for core in range(num_cores)))
    return program, tasks, LanePlan(all_lanes, steps, 0.0)


def chain(num_cores: int) -> TaskGraph:
    """Build a chain: each task needs the previous one, which runs in another lane."""
    needs = [[n - 1] if n else [] for n in range(NUM_TASKS)]
    return build_graph(needs, [1 + n % num_cores for n in range(NUM_TASKS)], num_cores)


def fork_join(num_cores: int) -> TaskGraph:
    """Build fork and join: a task of the caller, one in each lane, then a task of the caller that needs them all."""
    needs: List[List[int]] = [[]]
    lanes = [0]
    while len(needs) + num_cores + 1 <= NUM_TASKS:
        stem = len(needs) - 1
        needs += [[stem] for _ in range(num_cores)]
        lanes += list(range(1, num_cores + 1))
        needs.append(list(range(stem + 1, stem + 1 + num_cores)))
        lanes.append(0)
    return build_graph(needs, lanes, num_cores)


def apart(num_cores: int) -> TaskGraph:
    """Build one independent chain per lane."""
    needs = [[n - num_cores] if n >= num_cores else [] for n in range(NUM_TASKS)]
    return build_graph(needs, [1 + n % num_cores for n in range(NUM_TASKS)], num_cores)


def woken(num_cores: int) -> TaskGraph:
    """Build a chain of long operators."""
    needs = [[n - 1] if n else [] for n in range(NUM_LONG_TASKS)]
    return build_graph(needs, [1 + n % num_cores for n in range(NUM_LONG_TASKS)], num_cores, LONG)


SHAPES = (chain, fork_join, apart, woken)


def measure_medians(runs: Dict[str, Callable[[], object]], rounds: int) -> Dict[str, float]:
    """Return the median seconds of each, timed in turns."""
    times: Dict[str, List[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            for _ in range(5):
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def measure_overheads(rounds: int) -> Dict[str, Any]:
    """Measure the microseconds of overhead per task, by shape and executor."""
    num_cores = min(4, len(os.sched_getaffinity(0)))
    executors: Dict[str, Any] = {"python": PythonExecutor}
    problem = explain_missing_native()
    if not problem:
        executors["native"] = NativeExecutor
    teams = Teams(sorted(os.sched_getaffinity(0)))
    found: Dict[str, Any] = {"num_cores": num_cores, "torch": torch.__version__, "no_native": problem}
    with torch.no_grad():
        for shape in SHAPES:
            program, tasks, plan = shape(num_cores)
            x = torch.ones(LONG_ELEMENTS if shape is woken else 1)
            runs = {
                name: _bind_executor(executor(program, tasks, plan, teams), program.num_values, x)
                for name, executor in executors.items()
            }
            if shape is woken:
                runs["plain"] = _bind_plain_calls(len(tasks), x)
            times = measure_medians(runs, rounds)
            own = times.pop("plain", 0.0)
            length = len(tasks) / num_cores if shape is apart else len(tasks)
            found[shape.__name__] = {name: 1e6 * (seconds - own) / length for name, seconds in times.items()}
    return found


def _bind_plain_calls(num_calls: int, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        one = x
        for _ in range(num_calls):
            one = LONG[0](one, *LONG[1:])

    return run


def _bind_executor(executor: Any, num_values: int, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        values: List[Any] = [None] * num_values
        values[0] = x
        executor.run(values)

    return run


def main() -> int:
    """Print the table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure_overheads(options.rounds)
    print(f"overhead per task in microseconds, {found['num_cores']} lanes, torch {found['torch']}")
    if found["no_native"]:
        print(f"no C++ executor: {found['no_native']}")
    print(f"{'':<12}{'python':>10}{'native':>10}")
    missed = []
    for shape in (one.__name__ for one in SHAPES):
        row = found[shape]
        cells = [f"{row[name]:.1f}" if name in row else "-" for name in ("python", "native")]
        print(f"{shape:<12}" + "".join(f"{cell:>10}" for cell in cells))
        missed += [f"{shape}, {name}" for name in row if row[name] > GOAL_US[name]]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print("goals: native 10, python 60" + (f"; missed by {', '.join(missed)}" if missed else "; met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
