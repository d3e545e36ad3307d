"""Time fixed settings and `corewise.malleable` in fresh processes, for the benchmarks of malleable widths.

Needs torch and numpy only. A nursery is a process that has loaded torch under one environment and computed
nothing; it forks a fresh process for each order.
"""

from __future__ import annotations

import functools
import json
import math
import os
import signal
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
GIB = 1024**3
WAITING = {
    "default": {},
    # These are the variables that docs/malleable.md recommends for `corewise launch`.
    "active": {"GOMP_SPINCOUNT": "300000", "OMP_WAIT_POLICY": "ACTIVE"},
    "active5000": {"GOMP_SPINCOUNT": "5000", "OMP_WAIT_POLICY": "ACTIVE"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
KEEPS_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 * GIB), "MALLOC_TOP_PAD_": str(64 * 1024**2)}
ALLOCATORS = {"stock": {}, "retain": KEEPS_MEMORY}
CONTROLLED = ("OMP_", "GOMP_", "KMP_", "MKL_", "MALLOC_", "LD_PRELOAD")
LEAST_CALLS, LEAST_S = 5, 1.5
# Factors by which a setting is slower than the best: one call suffices, or the first warm-up call.
HOPELESS, LOST = 1.5, 6.0
FORK_WARMING = 3


class Subject:
    """A workload's module and inputs."""

    def __init__(self, name: str, side_by_side: bool = False) -> None:
        import torch

        from corewise.measured.runtimes.torch.modules.network import build_network
        from corewise.measured.workloads.registry import find_workload

        workload, args, batch, mode = WORKLOADS[name]
        model: Any = find_workload(workload)
        args = {**model.parameters, **args}
        self.module = build_network(model.build_layers(args), 1, side_by_side=side_by_side)
        self.trains = mode == "train"
        self.module.train(self.trains)
        torch.manual_seed(0)
        shape, limits = model.compute_input_shape(args), model.list_id_limits(args)
        if limits:
            columns = [torch.randint(limit, (batch,)) for limit in limits]
            self.x = torch.stack(columns, 1)
        elif getattr(model, "time_major", False):
            self.x = torch.randn(shape[0], batch, *shape[1:]).transpose(0, 1)
        else:
            self.x = torch.randn(batch, *shape)
        # Images use the layout that suits oneDNN, in all settings.
        if len(shape) == 3:
            self.module.to(memory_format=torch.channels_last)
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        torch.set_grad_enabled(self.trains)

    @functools.cached_property
    def bound(self) -> Any:
        """The captured operators of the module."""
        from corewise.accelerate.malleable.capture.module_capture import capture
        from corewise.accelerate.malleable.execute.module_binding import BoundProgram

        return BoundProgram(capture(self.module, (self.x,), {}), self.module)

    def build_step(self, call: Callable[[Any], Any]) -> Callable[[], None]:
        """Return one inference, or one forward and backward pass, as a call."""

        def run() -> None:
            result = call(self.x)
            if self.trains:
                for parameter in self.module.parameters():
                    parameter.grad = None
                first = result[0] if isinstance(result, tuple) else result
                first.square().mean().backward()

        return run


class Pool:
    """A program on `inter` Python threads of fixed width: a free thread takes the next ready task."""

    def __init__(self, subject: Subject, inter: int, intra: int) -> None:
        from corewise.accelerate.malleable.execute.task_functions import compile_task, compute_lifetimes
        from corewise.accelerate.malleable.plan.task_merging import find_chains

        self.bound = subject.bound
        self.tasks = find_chains(self.bound.program)
        own, _, _ = compute_lifetimes(self.bound.program, self.tasks)
        self.functions = [
            compile_task(self.bound.program, task, kept) for task, kept in zip(self.tasks, own, strict=True)
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
        self._run_tasks(forever=True)

    def _run_tasks(self, forever: bool) -> None:
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
        self.values = self.bound.collect_values([x])
        with self.change:
            self.left = [len(task.needs) for task in self.tasks]
            self.num_left = len(self.tasks)
            self.ready = [number for number, num in enumerate(self.left) if num == 0]
            self.change.notify_all()
        self._run_tasks(forever=False)
        return self.bound.build_result(self.values)

    def close(self) -> None:
        with self.change:
            self.is_over = True
            self.change.notify_all()
        for thread in self.threads:
            thread.join()


def time_calls(run: Callable[[], None], num: int, seconds: float, hopeless_s: float = math.inf) -> List[float]:
    """Time calls after two warm-up calls: `num` of them, or as many as fit into `seconds`, at least one."""
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


def measure_order(order: Mapping[str, Any]) -> Dict[str, Any]:
    """Time the points of an order in this process."""
    import torch

    found: Dict[str, Any] = {}
    if order["method"] == "fork":
        torch.set_num_interop_threads(order["points"][0][0])
    subject = Subject(order["workload"], side_by_side=order["method"] == "fork")
    num, seconds = order["num"], order["seconds"]
    best_s = order.get("best_s", math.inf)

    def time_point(point: str, call: Callable[[Any], Any]) -> None:
        nonlocal best_s
        found[point] = time_calls(subject.build_step(call), num, seconds, HOPELESS * best_s)
        best_s = min(best_s, *found[point])

    if order["method"] == "malleable":
        return measure_malleable(subject, num, seconds, order.get("pack", True))
    if order["method"] == "fork":
        import warnings

        warnings.simplefilter("ignore")
        [[inter, intra]] = order["points"]
        torch.set_num_threads(intra)
        scripted = torch.jit.script(subject.module)
        # TorchScript profiles the first calls, then compiles its kernels.
        for _ in range(FORK_WARMING):
            subject.build_step(scripted)()
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


def measure_malleable(subject: Subject, num: int, seconds: float, pack: bool) -> Dict[str, Any]:
    """Time `corewise.malleable` in this process, with facts about its plan."""
    from corewise.accelerate.malleable.module_wrapper import malleable

    start = time.perf_counter()
    fast = malleable(subject.module, (subject.x,), pack=pack)
    start_s = time.perf_counter() - start
    times = time_calls(subject.build_step(fast), num, seconds)
    entry = fast._last_plan
    decision = entry.decision if entry else None
    facts: Dict[str, Any] = {"start_s": start_s, "reason": entry.reason if entry else ""}
    if decision is not None:
        facts.update(
            chosen=decision.chosen,
            bound_s=decision.bound_s,
            planning_s=decision.planning_s,
            was_kept=decision.is_cached,
            candidates_s=decision.times_s,
            expected_s=decision.expected_s,
            executor=decision.executor.name if decision.executor else "none",
        )
    facts["explained"] = fast.explain()
    fast.close()
    return {"malleable": times, "facts": facts}


class Nursery:
    """A process that has loaded torch under one environment and forks a fresh one for each order.

    It has computed nothing, so a child starts without threads, as a new process would.
    """

    def __init__(self, waiting: str, allocator: str, cpus: Sequence[int], cache: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith(CONTROLLED)}
        env.update(WAITING[waiting])
        env.update(ALLOCATORS[allocator])
        env["XDG_CACHE_HOME"] = cache
        before = os.sched_getaffinity(0)
        # The child inherits the mask; libgomp counts its CPUs when it is loaded.
        os.sched_setaffinity(0, cpus)
        try:
            self.process = subprocess.Popen(
                [sys.executable, __file__],
                env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        finally:
            os.sched_setaffinity(0, before)

    def ask(self, order: Mapping[str, Any]) -> Any:
        """Return the answer of a fresh process, or the problem."""
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
    """Run orders from standard input, each in a forked process with a time limit."""
    import torch

    # Loading this takes most of the time of the first export.
    import torch.export._trace

    assert not torch.cuda.is_initialized()
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _run_order(order, writer)
        os.close(writer)
        print(json.dumps(_await_answer(pid, reader, order["limit"])), flush=True)


def _run_order(order: Mapping[str, Any], writer: int) -> None:
    try:
        answer = measure_order(order)
    except BaseException as problem:
        answer = {"problem": f"{type(problem).__name__}: {problem}"}
    with os.fdopen(writer, "w") as pipe:
        json.dump(answer, pipe)
    # Some torch builds abort when their inter-op threads end.
    os._exit(0)


def _await_answer(pid: int, reader: int, limit_s: float) -> Any:
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


if __name__ == "__main__":
    serve()
