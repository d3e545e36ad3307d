"""Changing widths against the best fixed setting: inter x intra x waiting x allocator, and plain 1xN.

    python benchmarks/malleable_gain.py --cores 16 --seconds 1500 --out gain.json [WORKLOAD ...]

Needs torch and numpy only. The grid is screened in one environment, its best points in the others; then the
best five settings and `corewise.malleable` are timed in turns, each time in a fresh process (forked from one
that has loaded torch under the same environment and computed nothing). *Inter* means that branches really run
together: for each point both a pool of Python threads and TorchScript's fork count. What was measured is kept
in the file as it goes, so a run that is cut short goes on where it ended; `--show` prints the table of such a
file.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

# Name: workload, its arguments, batch, mode.
WORKLOADS: Dict[str, Tuple[str, Dict[str, Any], int, str]] = {
    "ensemble": ("lstm_ensemble", {}, 400, "infer"),
    "ensemble-64": ("lstm_ensemble", {"time_steps": 200, "features": 64, "hidden": 64}, 400, "infer"),
    "inception-1": ("inception_v3", {}, 1, "infer"),
    "inception-8": ("inception_v3", {}, 8, "infer"),
    "two-tower": ("two_tower", {}, 256, "infer"),
    "experts": ("mixture_of_experts", {}, 8, "infer"),
    "ensemble-train": ("lstm_ensemble", {}, 400, "train"),
    "alexnet": ("alexnet", {}, 16, "infer"),
    "resnet50": ("resnet50", {}, 8, "infer"),
    "transformer": ("transformer", {}, 8, "infer"),
}
NARROW = ("alexnet", "resnet50", "transformer")
GIB = 1024**3
WAITING = {
    "default": {},
    "active": {"GOMP_SPINCOUNT": "300000", "OMP_WAIT_POLICY": "ACTIVE"},  # as `corewise launch` is told to
    "active5000": {"GOMP_SPINCOUNT": "5000", "OMP_WAIT_POLICY": "ACTIVE"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
KEEPS_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 * GIB),
    "MALLOC_TOP_PAD_": str(64 * 1024**2),
}
ALLOCATORS = {"stock": {}, "retain": KEEPS_MEMORY}
CONTROLLED = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "LD_PRELOAD")
FIRST_ENVIRONMENT = ("active5000", "retain")  # that the whole grid is screened in
OURS = "malleable active retain"
SCREEN_CALLS, SCREEN_S = 3, 0.5
LEAST_CALLS, LEAST_S = 5, 1.5
HOPELESS, LOST = 1.5, 6.0  # times as slow as the best: one call tells enough, for lost ones the first
FORK_WARMING = 3
NUM_POOLS, NUM_FORKS = 10, 2  # settings of the first environment that are tried in the others
NUM_FINALISTS = 5


# --- in the measured process ---


class Subject:
    """A workload's module and inputs, with ways to run it."""

    def __init__(self, name: str, side_by_side: bool = False) -> None:
        import torch

        from corewise.runtimes.torch.network import build_network
        from corewise.workloads.registry import find_workload

        workload, args, batch, mode = WORKLOADS[name]
        model: Any = find_workload(workload)
        args = {**model.parameters, **args}
        self.module = build_network(model.layers(args), 1, side_by_side=side_by_side)
        self.trains = mode == "train"
        self.module.train(self.trains)
        torch.manual_seed(0)
        shape, limits = model.input_shape(args), model.id_limits(args)
        if limits:
            columns = [torch.randint(limit, (batch,)) for limit in limits]
            self.x = torch.stack(columns, 1)
        elif getattr(model, "time_major", False):
            self.x = torch.randn(shape[0], batch, *shape[1:]).transpose(0, 1)
        else:
            self.x = torch.randn(batch, *shape)
        if len(shape) == 3:  # images: the layout that suits oneDNN, for all alike
            self.module.to(memory_format=torch.channels_last)
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        torch.set_grad_enabled(self.trains)

    @functools.cached_property
    def bound(self) -> Any:
        """The module's operators, captured."""
        from corewise.dataflow.binding import Bound
        from corewise.dataflow.capture import capture

        return Bound(capture(self.module, (self.x,), {}), self.module)

    def step(self, call: Callable[[Any], Any]) -> Callable[[], None]:
        """One inference, or forward and backward."""

        def run() -> None:
            result = call(self.x)
            if self.trains:
                for parameter in self.module.parameters():
                    parameter.grad = None
                first = result[0] if isinstance(result, tuple) else result
                first.square().mean().backward()

        return run


class Pool:
    """A program on so many Python threads, each of one fixed width: whoever is free takes what is ready."""

    def __init__(self, subject: Subject, inter: int, intra: int) -> None:
        from corewise.dataflow.generated import lifetimes, task_function
        from corewise.dataflow.tasks import chains

        self.bound = subject.bound
        self.tasks = chains(self.bound.program)
        own, _, _ = lifetimes(self.bound.program, self.tasks)
        self.functions = [
            task_function(self.bound.program, task, kept) for task, kept in zip(self.tasks, own, strict=True)
        ]
        self.followers: List[List[int]] = [[] for _ in self.tasks]
        for number, task in enumerate(self.tasks):
            for other in task.needs:
                self.followers[other].append(number)
        self.intra, self.trains = intra, subject.trains
        self.ready: List[int] = []
        self.change = threading.Condition()
        self.is_over = False
        self.left: List[int] = []
        self.num_left = 0
        self.values: List[Any] = []
        self.threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(inter - 1)]
        for thread in self.threads:
            thread.start()

    def _serve(self) -> None:
        import torch

        torch.set_num_threads(self.intra)
        torch.set_grad_enabled(self.trains)
        self._work(forever=True)

    def _work(self, forever: bool) -> None:
        while True:
            with self.change:
                while not self.ready and not self.is_over and (forever or self.num_left):
                    self.change.wait()
                if self.is_over or (not forever and not self.num_left):
                    return
                number = self.ready.pop(0)
            self.functions[number](self.values)
            with self.change:
                self.num_left -= 1
                for other in self.followers[number]:
                    self.left[other] -= 1
                    if self.left[other] == 0:
                        self.ready.append(other)
                self.change.notify_all()

    def __call__(self, x: Any) -> Any:
        self.values = self.bound.values([x])
        with self.change:
            self.left = [len(task.needs) for task in self.tasks]
            self.num_left = len(self.tasks)
            self.ready = [number for number, num in enumerate(self.left) if num == 0]
            self.change.notify_all()
        self._work(forever=False)
        return self.bound.result(self.values)

    def close(self) -> None:
        with self.change:
            self.is_over = True
            self.change.notify_all()
        for thread in self.threads:
            thread.join()


def timed(run: Callable[[], None], num: int, seconds: float, hopeless_s: float = math.inf) -> List[float]:
    """Seconds of calls after two to warm up: so many, or as many as there is time for, at least one."""
    for most_s in (LOST / HOPELESS * hopeless_s, min(seconds, hopeless_s)):
        start = time.perf_counter()
        run()
        once_s = time.perf_counter() - start
        if once_s > most_s:
            return [once_s]
    times: List[float] = []
    while len(times) < num or (num == LEAST_CALLS and sum(times) < seconds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
        if sum(times) > seconds and len(times) >= min(num, 3):
            break
    return times


def child(order: Mapping[str, Any]) -> Dict[str, Any]:
    """Times the points an order names, in this process."""
    import torch

    found: Dict[str, Any] = {}
    if order["way"] == "fork":
        torch.set_num_interop_threads(order["points"][0][0])
    subject = Subject(order["workload"], side_by_side=order["way"] == "fork")
    num, seconds = order["num"], order["seconds"]
    best_s = order.get("best_s", math.inf)

    def time_point(point: str, call: Callable[[Any], Any]) -> None:
        nonlocal best_s
        found[point] = timed(subject.step(call), num, seconds, HOPELESS * best_s)
        best_s = min(best_s, *found[point])

    if order["way"] == "malleable":
        return ours(subject, num, seconds)
    if order["way"] == "fork":
        import warnings

        warnings.simplefilter("ignore")
        [[inter, intra]] = order["points"]
        torch.set_num_threads(intra)
        scripted = torch.jit.script(subject.module)
        for _ in range(FORK_WARMING):  # it looks at what comes, then makes its kernels
            subject.step(scripted)()
        time_point(f"fork {inter}x{intra}", scripted)
        return found
    for inter, intra in order["points"]:
        torch.set_num_threads(intra)
        if inter == 1:
            time_point(f"plain 1x{intra}", subject.module)
            continue
        pool = Pool(subject, inter, intra)
        time_point(f"pool {inter}x{intra}", pool)
        pool.close()
    return found


def ours(subject: Subject, num: int, seconds: float) -> Dict[str, Any]:
    """`corewise.malleable` in this process, with what it says of itself."""
    from corewise.dataflow.malleable import malleable

    start = time.perf_counter()
    fast = malleable(subject.module, (subject.x,))
    start_s = time.perf_counter() - start
    times = timed(subject.step(fast), num, seconds)
    entry = fast._last
    decision = entry.decision if entry else None
    facts: Dict[str, Any] = {"start_s": start_s, "reason": entry.reason if entry else ""}
    if decision is not None:
        facts.update(
            chosen=decision.chosen,
            bound_s=decision.bound_s,
            planning_s=decision.planning_s,
            was_kept=decision.was_kept,
            candidates_s=decision.times_s,
            expected_s=decision.expected_s,
            executor=decision.executor.name if decision.executor else "none",
        )
    facts["explained"] = fast.explain()
    fast.close()
    return {"malleable": times, "facts": facts}


# --- in the controlling process ---


class Nursery:
    """A process that has loaded torch under one environment and forks a fresh one for each order.

    Nothing has been computed in it, so that a child starts with no threads, as a process of its own would.
    """

    def __init__(self, waiting: str, allocator: str, cpus: Sequence[int], cache: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(CONTROLLED)}
        env.update(WAITING[waiting])
        env.update(ALLOCATORS[allocator])
        env["XDG_CACHE_HOME"] = cache
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus)  # inherited; libgomp counts its CPUs when it is loaded
        try:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--serve"],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        finally:
            os.sched_setaffinity(0, before)

    def ask(self, order: Mapping[str, Any]) -> Any:
        """What a fresh process answers, or why it did not."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """Orders from standard input, each carried out by a forked process that is given up after its limit."""
    import torch
    import torch.export._trace  # what export takes long to load

    from corewise.dataflow import malleable as _loads_all_of_it  # noqa: F401
    from corewise.runtimes.torch import network as _and_the_models  # noqa: F401

    assert not torch.cuda.is_initialized()
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _answer(order, writer)
        os.close(writer)
        print(json.dumps(_answered(pid, reader, order["limit"])), flush=True)


def _answer(order: Mapping[str, Any], writer: int) -> None:
    try:
        answer = child(order)
    except BaseException as problem:
        answer = {"problem": f"{type(problem).__name__}: {problem}"}
    with os.fdopen(writer, "w") as pipe:
        json.dump(answer, pipe)
    os._exit(0)  # some torch builds abort in the end of their inter-op threads


def _answered(pid: int, reader: int, limit_s: float) -> Any:
    timer = threading.Timer(limit_s, os.kill, (pid, signal.SIGKILL))
    timer.start()
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    timer.cancel()
    _, status = os.waitpid(pid, 0)
    if text:
        return json.loads(text)
    ended = os.waitstatus_to_exitcode(status)
    return {"problem": f"ended with {ended}" + (f" (limit {limit_s:.0f} s)" if ended == -9 else "")}


def powers(limit: int) -> List[int]:
    """1, 2, 4, ... up to the limit, and the limit."""
    return sorted({2**n for n in range(limit.bit_length()) if 2**n <= limit} | {limit})


class Campaign:
    """One run over workloads, kept in a file as it goes."""

    def __init__(self, out: Path, cores: int, end: float, rounds: int) -> None:
        self.out, self.end, self.rounds = out.resolve(), end, rounds
        self.cpus = sorted(os.sched_getaffinity(0))[:cores]
        self.cores = len(self.cpus)
        self.kept: Dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        self.kept.setdefault("machine", f"{self.cores} cores of {processor()}")
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

    def screen(self, name: str) -> None:
        """The whole grid in one environment, then what did best there in the others."""
        kept = self.kept["workloads"].setdefault(
            name, {"screen": {}, "screened": [], "rounds": {}, "facts": []}
        )
        inters = [inter for inter in powers(min(16, self.cores)) if inter == 1 or name not in NARROW]
        grid = [(i, w) for i in inters for w in powers(self.cores) if i * w <= 2 * self.cores]
        grid.sort(key=lambda one: abs(math.log2(one[0] * one[1] / self.cores)))  # good ones first, as a rule
        environments = [(waiting, allocator) for allocator in ("retain", "stock") for waiting in WAITING]
        environments.sort(key=lambda one: one != FIRST_ENVIRONMENT)
        for waiting, allocator in environments:
            is_first = (waiting, allocator) == FIRST_ENVIRONMENT
            for way in ("pool", "fork") if allocator == "retain" else ("pool",):  # plain ones with the pools
                points = [point for point in grid if way == "pool" or point[0] > 1]
                if not is_first:
                    best = self._best_points(kept["screen"], way)
                    points = [point for point in points if point in best or point == (1, self.cores)]
                # Threads of TorchScript keep the width they first had: a process for each of its points.
                for some in [points] if way == "pool" else [[point] for point in points]:
                    if some:
                        order = {"way": way, "points": some, "workload": name}
                        self._screen_some(kept, order, waiting, allocator)
        best_names = sorted(kept["screen"], key=lambda point: kept["screen"][point])[:3]
        print(f"{name}: screened {len(kept['screen'])}: {', '.join(best_names)}", flush=True)

    def _best_points(self, screened: Mapping[str, float], way: str) -> List[Tuple[int, int]]:
        ours = [one for one in screened if one.endswith(" ".join(FIRST_ENVIRONMENT))]
        ours = [one for one in ours if one.startswith("fork") == (way == "fork")]
        best = sorted(ours, key=lambda point: screened[point])[: NUM_POOLS if way == "pool" else NUM_FORKS]
        shapes = [one.split()[1].split("x") for one in best]
        return [(int(inter), int(intra)) for inter, intra in shapes]

    def _screen_some(self, kept: Dict[str, Any], order: Dict[str, Any], waiting: str, allocator: str) -> None:
        shape = "x".join(map(str, order["points"][0])) if order["way"] == "fork" else "0"
        label = f"{order['way']} {shape} {waiting} {allocator}"
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
        """The best five and ours, in turns, each time in a fresh process."""
        kept = self.kept["workloads"][name]
        ranked = sorted(kept["screen"], key=lambda point: kept["screen"][point])
        finalists = kept.setdefault("finalists", ranked[:NUM_FINALISTS])
        for number in range(self.rounds):
            for point in [OURS, *finalists]:
                taken = kept["rounds"].setdefault(point, [])
                if len(taken) > number or not self.has_time(8):
                    continue
                *words, waiting, allocator = point.split()
                answer = self.ask(self._sole_order(name, words), waiting, allocator)
                if "problem" in answer:
                    print(f"{name}: {point}: {answer['problem']}", flush=True)
                    continue
                if "facts" in answer:
                    kept["facts"].append(answer.pop("facts"))
                [times] = answer.values()
                taken.append(statistics.median(times))
                self.save()

    def _sole_order(self, name: str, words: Sequence[str]) -> Dict[str, Any]:
        order: Dict[str, Any] = {"workload": name, "num": LEAST_CALLS, "seconds": LEAST_S, "way": "malleable"}
        if words[0] != "malleable":
            inter, intra = (int(one) for one in words[1].split("x"))
            order.update(way="fork" if words[0] == "fork" else "pool", points=[(inter, intra)])
        return order


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def shown(kept: Mapping[str, Any]) -> str:
    """The table of what was measured."""
    head = (
        "workload",
        "best fixed",
        "ms",
        "malleable",
        "ms",
        "gain",
        "rounds",
        "bound",
        "of it",
        "beats",
        "plain",
    )
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
        plain = [
            s for point, s in one["screen"].items() if point.startswith("plain") and "default stock" in point
        ]
        rows.append(
            (
                name, best, f"{1e3 * medians[best]:.2f}", facts.get("chosen", "plain"), f"{1e3 * mine:.2f}",
                f"{medians[best] / mine:.2f}", str(len(ours_s)), f"{1e3 * bound:.2f}", f"{bound / mine:.0%}",
                f"{beaten:.0%}", f"{1e3 * min(plain):.2f}" if plain else "",
            )
        )  # fmt: skip
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([kept["machine"], *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=1500.0, help="stop after so long")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes of each finalist")
    parser.add_argument("--out", type=Path, default=Path("malleable_gain.json"))
    parser.add_argument("--show", action="store_true", help="print the table of the file, measure nothing")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    unknown = set(given.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; known: {', '.join(WORKLOADS)}")
    if not given.show:
        began = time.monotonic()
        campaign = Campaign(given.out, given.cores, began + given.seconds, given.rounds)
        for name in given.workloads or WORKLOADS:
            campaign.screen(name)
            campaign.confirm(name)
            print(f"{time.monotonic() - began:.0f} s", flush=True)
        campaign.close()
    print(shown(json.loads(given.out.read_text())))


if __name__ == "__main__":
    main()
