"""What handing tasks to other threads costs: the C++ executor and Python threads, side by side, in turns.

    python benchmarks/malleable_overhead.py [--rounds 7] [--json FILE]

Needs torch and numpy only. Shapes of tasks on up to four lanes, one core each:
chain       every task waits for one in another lane: the whole hand-over, with nothing to hide it
fork_join   the caller's task, one in each lane, the caller's again: what a wide model does
apart       lanes that never wait for each other: what a task costs by itself
woken       a chain of operators so long that the waiting lanes have gone to sleep
The overhead is a run's time over its tasks (over those of one lane where lanes run apart), the tiny operator
included; for the last shape less what plain execution takes for the same operators.
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
os.environ.setdefault("GOMP_SPINCOUNT", "5000")  # as a launched program has it: read when torch is loaded

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from corewise.dataflow.native_executor import NativeExecutor, missing
from corewise.dataflow.program import Call, Program, Ref
from corewise.dataflow.python_executor import PythonExecutor
from corewise.dataflow.schedule import Lane, Plan, Step, Task
from corewise.dataflow.teams import Teams

NUM_TASKS = 400
NUM_LONG_TASKS = 60
TINY = (torch.ops.aten.neg.default,)
LONG = (torch.ops.aten.cumsum.default, 0)  # one thread whatever the width
LONG_ELEMENTS = 60_000
GOAL_US = {"native": 10.0, "python": 60.0}
Made = Tuple[Program, Tuple[Task, ...], Plan]


def made(
    needs: Sequence[Sequence[int]], lanes: Sequence[int], num_cores: int, operator: Sequence[Any] = TINY
) -> Made:
    """A program of one operator a task, with these needs and lanes."""
    target, *rest = operator
    calls = [
        Call(f"call_{n}", target, (Ref(before[0] + 1 if before else 0), *rest), {}, (n + 1,))
        for n, before in enumerate(needs)
    ]
    outputs = (Ref(len(calls)),)
    program = Program(tuple(calls), len(calls) + 1, (0,), {}, {}, outputs)
    tasks = tuple(Task((n,), tuple(before)) for n, before in enumerate(needs))
    steps = tuple(Step(n, lane, tuple(needs[n])) for n, lane in enumerate(lanes))
    all_lanes = (Lane(0, num_cores), *(Lane(core, 1) for core in range(num_cores)))
    return program, tasks, Plan(all_lanes, steps, 0.0)


def chain(num_cores: int) -> Made:
    """Each task needs the one before it, which ran in another lane."""
    needs = [[n - 1] if n else [] for n in range(NUM_TASKS)]
    return made(needs, [1 + n % num_cores for n in range(NUM_TASKS)], num_cores)


def fork_join(num_cores: int) -> Made:
    """A task of the caller, one in each lane, then the next of the caller, which needs them all."""
    needs: List[List[int]] = [[]]
    lanes = [0]
    while len(needs) + num_cores + 1 <= NUM_TASKS:
        stem = len(needs) - 1
        needs += [[stem] for _ in range(num_cores)]
        lanes += list(range(1, num_cores + 1))
        needs.append(list(range(stem + 1, stem + 1 + num_cores)))
        lanes.append(0)
    return made(needs, lanes, num_cores)


def apart(num_cores: int) -> Made:
    """As many chains as lanes, each in its own."""
    needs = [[n - num_cores] if n >= num_cores else [] for n in range(NUM_TASKS)]
    return made(needs, [1 + n % num_cores for n in range(NUM_TASKS)], num_cores)


def woken(num_cores: int) -> Made:
    """A chain of long operators."""
    needs = [[n - 1] if n else [] for n in range(NUM_LONG_TASKS)]
    return made(needs, [1 + n % num_cores for n in range(NUM_LONG_TASKS)], num_cores, LONG)


SHAPES = (chain, fork_join, apart, woken)


def medians_in_turns(runs: Dict[str, Callable[[], object]], rounds: int) -> Dict[str, float]:
    """Median seconds of each, timed in turns."""
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


def measured(rounds: int) -> Dict[str, Any]:
    """Microseconds of overhead per task, by shape and executor."""
    num_cores = min(4, len(os.sched_getaffinity(0)))
    kinds: Dict[str, Any] = {"python": PythonExecutor}
    problem = missing()
    if not problem:
        kinds["native"] = NativeExecutor
    teams = Teams(sorted(os.sched_getaffinity(0)))
    found: Dict[str, Any] = {"num_cores": num_cores, "torch": torch.__version__, "no_native": problem}
    with torch.no_grad():
        for shape in SHAPES:
            program, tasks, plan = shape(num_cores)
            x = torch.ones(LONG_ELEMENTS if shape is woken else 1)
            runs = {
                kind: _run(executor(program, tasks, plan, teams), program.num_values, x)
                for kind, executor in kinds.items()
            }
            if shape is woken:
                runs["plain"] = _plain(len(tasks), x)
            times = medians_in_turns(runs, rounds)
            own = times.pop("plain", 0.0)
            length = len(tasks) / num_cores if shape is apart else len(tasks)
            found[shape.__name__] = {kind: 1e6 * (seconds - own) / length for kind, seconds in times.items()}
    return found


def _plain(num_calls: int, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        one = x
        for _ in range(num_calls):
            one = LONG[0](one, *LONG[1:])

    return run


def _run(executor: Any, num_values: int, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        values: List[Any] = [None] * num_values
        values[0] = x
        executor.run(values)

    return run


def main() -> int:
    """Prints the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measured(options.rounds)
    print(f"overhead per task in microseconds, {found['num_cores']} lanes, torch {found['torch']}")
    if found["no_native"]:
        print(f"no C++ executor: {found['no_native']}")
    print(f"{'':<12}{'python':>10}{'native':>10}")
    missed = []
    for shape in (one.__name__ for one in SHAPES):
        row = found[shape]
        cells = [f"{row[kind]:.1f}" if kind in row else "-" for kind in ("python", "native")]
        print(f"{shape:<12}" + "".join(f"{cell:>10}" for cell in cells))
        missed += [f"{shape}, {kind}" for kind in row if row[kind] > GOAL_US[kind]]
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print("goals: native 10, python 60" + (f"; missed by {', '.join(missed)}" if missed else "; met"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
