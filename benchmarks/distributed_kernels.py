"""Compare the speed-up of distributed kernels on several cores with the speed-up that the cores allow.

One rank on one core against P ranks on a core each, for conjugate gradients, the tiled product and the Fourier
transform, through every backend that is present. What the cores allow is measured in the same rounds: STREAM's triad
on one core and on P cores for the first and the last, and independent products in memory for the tiled product. All
groups of ranks stay alive and take turns. Needs numpy, torch and the source folder of Corewise.

  python benchmarks/distributed_kernels.py --ranks 2
  python benchmarks/distributed_kernels.py --ranks 2 4 8 16 --cg-size 16384 --fft-size 67108864 --json scaling.json
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from kernel_runs import SETTLE_S, SOURCE, describe_machine

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, MissingPart, RankContext
from corewise.measured.runtimes.registry import find_runtime

# The part of the possible speed-up that has to be reached.
ASKED = 0.85
BOUNDS = {"distributed_cg": "stream", "distributed_fft": "stream", "distributed_product": "gemm"}
BACKENDS = ("gloo", "shared", "mpi")
# Each array of the triad of one rank, beyond its share of the caches.
TRIAD_BYTES = 2**27


@dataclasses.dataclass(frozen=True)
class Group:
    """Ranks that run one kernel: together, or as independent replicas if it is a bound."""

    kernel: str
    num_ranks: int
    backend: str
    dtype: str
    args: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.kernel} × {self.num_ranks}{f' {self.backend}' if self.backend else ''}"


def list_cores() -> list[int]:
    """Return one allowed CPU of each core."""
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.exists() else str(cpu), cpu)
    return list(cores.values())


def be_rank(group: Group, rank: int, folder: str, cpu: int, commands: Any, answers: Any) -> None:
    """Prepare the job of a rank as a trial does, and run steps on command."""
    os.sched_setaffinity(0, {cpu})
    is_bound = group.kernel in BOUNDS.values()
    point = {"workload": group.kernel, "mode": "infer", "runtime": "torch", "dtype": group.dtype, "batch": 1}
    point |= {"threads": 1, "processes": group.num_ranks}
    if group.backend:
        point["collectives"] = group.backend
    params = TrialParameters.from_mapping({**point, **{f"args.{name}": value for name, value in group.args.items()}})
    runtime = find_runtime("torch")
    try:
        job = runtime.prepare(params, RankContext(rank, group.num_ranks, folder, 1, time_limit_s=300.0))
        check = job.check()
    except (Infeasible, MissingPart) as problem:
        answers.write(json.dumps({"refused": str(problem)}) + "\n")
        answers.flush()
        return
    if not check.passed:
        raise SystemExit(f"{group.name}: wrong numbers on rank {rank}, {check}")
    job.step()
    answers.write(json.dumps({"independent": is_bound}) + "\n")
    answers.flush()
    for line in commands:
        times_s = []
        for _ in range(int(line)):
            began = time.perf_counter()
            job.step()
            times_s.append(time.perf_counter() - began)
        answers.write(json.dumps({"times_s": times_s, "metrics": dict(job.collect_metrics(0.0))}) + "\n")
        answers.flush()
    job.close()


def serve(text: str) -> int:
    """Fork the ranks of a group and pass on commands and answers."""
    group = Group(**json.loads(text))
    runtime = find_runtime("torch")
    runtime.warm()
    runtime.warm_for(TrialParameters.from_mapping({"workload": group.kernel, "mode": "infer", "batch": 1}))
    folder = tempfile.mkdtemp(prefix="corewise-ranks-")
    ranks = []
    for rank, cpu in enumerate(list_cores()[: group.num_ranks]):
        (command_read, command_write), (answer_read, answer_write) = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(command_write)
            for other, _ in ranks:
                other.close()
            code = 1
            try:
                be_rank(group, rank, folder, cpu, os.fdopen(command_read), os.fdopen(answer_write, "w"))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(command_read)
        os.close(answer_write)
        ranks.append((os.fdopen(command_write, "w"), os.fdopen(answer_read)))
    try:
        while True:
            print(json.dumps([json.loads(answers.readline()) for _, answers in ranks]), flush=True)
            line = sys.stdin.readline()
            if not line:
                break
            for commands, _ in ranks:
                commands.write(line)
                commands.flush()
    finally:
        for commands, _ in ranks:
            commands.close()
        for _ in ranks:
            os.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


class RunningGroup:
    """A started group; `rounds` holds the rate of each round, in steps per second, and `parts` the split of a step."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rounds: list[float] = []
        self.parts: dict[str, float] = {}
        env = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", json.dumps(dataclasses.asdict(group))]
        self._process = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = self._read()
        self.refusal = next((answer["refused"] for answer in first if "refused" in answer), "")

    def turn(self, num_steps: int) -> None:
        """Run steps and keep their rate: replicas add theirs, ranks that work together have that of the slowest."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        answers = self._read()
        if self.group.kernel in BOUNDS.values():
            self.rounds.append(sum(1 / statistics.median(answer["times_s"]) for answer in answers))
        else:
            slowest = [max(times_s) for times_s in zip(*(answer["times_s"] for answer in answers), strict=True)]
            self.rounds.append(1 / statistics.median(slowest))
            self.parts = {name: max(answer["metrics"][name] for answer in answers) for name in answers[0]["metrics"]}

    def close(self) -> None:
        self._process.communicate(timeout=120)

    def _read(self) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.group.name} ended with {self._process.wait()} before its turn")
        answers: list[dict[str, Any]] = json.loads(line)
        return answers


def build_groups(options: argparse.Namespace) -> list[Group]:
    """Return all groups: every kernel on one rank and on P, and what bounds it."""
    args: dict[str, tuple[str, dict[str, Any]]] = {
        "distributed_cg": ("float64", {"size": options.cg_size, "iterations": options.cg_iterations}),
        "distributed_product": ("float32", {"size": options.product_size, "tile": options.tile}),
        "distributed_fft": ("complex128", {"size": options.fft_size}),
        "stream": ("float64", {"size_bytes": TRIAD_BYTES}),
        "gemm": ("float32", {"size": options.tile}),
    }
    needed = [*options.kernels, *dict.fromkeys(BOUNDS[kernel] for kernel in options.kernels)]
    groups = []
    for kernel in needed:
        dtype, own = args[kernel]
        groups.append(Group(kernel, 1, "", dtype, own))
        backends = options.backends if kernel in BOUNDS else [""]
        groups += [Group(kernel, count, each, dtype, own) for count in options.ranks for each in backends]
    return groups


def compare_scaling(running: list[RunningGroup]) -> list[dict[str, Any]]:
    """Return a row for each group of several ranks: its speed-up, what is possible, and their ratio by rounds."""
    found = {(each.group.kernel, each.group.num_ranks, each.group.backend): each.rounds for each in running}
    rows = []
    for each in running:
        kernel, count = each.group.kernel, each.group.num_ranks
        if count == 1 or kernel not in BOUNDS:
            continue
        bound = BOUNDS[kernel]
        gained = [many / one for many, one in zip(each.rounds, found[kernel, 1, ""], strict=True)]
        allowed = [many / one for many, one in zip(found[bound, count, ""], found[bound, 1, ""], strict=True)]
        reached = [gain / most for gain, most in zip(gained, allowed, strict=True)]
        rows.append(
            {
                "kernel": kernel,
                "num_ranks": count,
                "backend": each.group.backend,
                "bound": bound,
                "speedup": statistics.median(gained),
                "allowed_speedup": statistics.median(allowed),
                "reached": statistics.median(reached),
                "reached_by_round": reached,
                "step_s": 1 / statistics.median(each.rounds),
                "parts_s": each.parts,
            }
        )
    return rows


def print_rows(rows: list[dict[str, Any]]) -> None:
    print(f"{'kernel':22}{'ranks':>6} {'backend':8}{'speed-up':>9}{'allowed':>9}{'reached':>9}  step, and parts")
    for row in rows:
        verdict = "" if row["reached"] >= ASKED else f"  below {ASKED}"
        parts = ", ".join(f"{name.removesuffix('_s')} {value * 1e3:.1f}" for name, value in row["parts_s"].items())
        print(
            f"{row['kernel']:22}{row['num_ranks']:6} {row['backend']:8}{row['speedup']:9.2f}"
            f"{row['allowed_speedup']:9.2f}{row['reached']:9.2f}  {row['step_s'] * 1e3:.1f} ms: {parts}{verdict}"
        )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--kernels", nargs="+", choices=tuple(BOUNDS), default=list(BOUNDS))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=["gloo"])
    parser.add_argument("--cg-size", type=int, default=8192)
    parser.add_argument("--cg-iterations", type=int, default=10)
    parser.add_argument("--fft-size", type=int, default=2**22)
    parser.add_argument("--product-size", type=int, default=4096)
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps of each group in a round")
    parser.add_argument("--json", type=Path, help="write the raw figures to this file")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    if options.serve:
        return serve(options.serve)
    num_cores = len(list_cores())
    if max(options.ranks) > num_cores:
        raise SystemExit(f"--ranks {max(options.ranks)}: this process may use {num_cores} cores")
    print(describe_machine(), flush=True)
    running = []
    for group in build_groups(options):
        started = RunningGroup(group)
        if started.refusal:
            print(f"left out: {group.name}: {started.refusal}", flush=True)
            started.close()
        else:
            running.append(started)
    for number in range(options.rounds):
        first = number % len(running)
        for each in running[first:] + running[:first]:
            time.sleep(SETTLE_S)
            each.turn(options.steps)
    rows = compare_scaling(running)
    print_rows(rows)
    if options.json:
        rates = {each.group.name: each.rounds for each in running}
        figures = {"machine": describe_machine(), "rows": rows, "steps_per_s": rates}
        options.json.write_text(json.dumps(figures, indent=1))
    for each in running:
        each.close()
    return 0 if all(row["reached"] >= ASKED for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
