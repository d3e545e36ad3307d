"""A job's step taken apart: each operator timed in the model, then each distinct one alone, in turn.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any, Callable, Dict, Mapping

import torch

from corewise.runtimes.base import Infeasible
from corewise.runtimes.steps import StepJob
from corewise.runtimes.torch.breakdown_alone import compare, run_alone, run_alone_on_gpu, tolerance_of
from corewise.runtimes.torch.breakdown_record import Clock, Key, Watch, as_called, event
from corewise.runtimes.torch.breakdown_rounds import Checked, Effort, Measured, marked_update
from corewise.runtimes.torch.cache_size import last_level_cache_bytes
from corewise.runtimes.torch.job import ModuleJob
from corewise.workloads.breakdown import Breakdown

SAMPLE_BYTES = 2**29  # kept of the model's own calls, to compare with
NUM_CALIBRATED = 2000
NUM_TRACKED = 2


def refuse(job: Any, params: Mapping[str, Any]) -> None:
    """Raises Infeasible, with the reason, for what has no operators to take apart."""
    if isinstance(job, StepJob):
        raise Infeasible(
            "the factory returns a step, not a module: there is nothing to take apart. "
            "Return (module, inputs) from it, as docs/own-workload.md says"
        )
    if not isinstance(job, ModuleJob):
        raise Infeasible(f"{params['workload']} is no model: it is a primitive or kernel already")
    if params["execution"] != "eager":
        raise Infeasible(
            f"execution {params['execution']}: fused kernels are no operators that could be run alone; "
            "primitives are taken from eager execution"
        )
    if params["memory_format"] == "blocked" or params["dtype"] == "int8":
        what = "memory_format blocked" if params["memory_format"] == "blocked" else "dtype int8"
        raise Infeasible(f"{what}: its tensors are opaque, so that no inputs like them can be drawn")
    if int(params["processes"]) > 1:
        raise Infeasible("processes: a model is taken apart in one process; leave processes at 1")


def break_down(
    job: ModuleJob,
    params: Mapping[str, Any],
    effort: Effort = Effort(),  # noqa: B008  (frozen)
    tell: Callable[[str], None] = lambda _phase: None,
    clock: Clock = time.perf_counter_ns,
) -> Breakdown:
    """The step and its primitives, measured in turn; the job has been checked and warmed up before."""
    refuse(job, params)
    on_gpu = params["device"] == "cuda"
    cache_bytes = last_level_cache_bytes(on_gpu)
    watch = Watch(event if on_gpu else clock, cache_bytes, SAMPLE_BYTES)
    tell("recording its operators")
    with marked_update(job, watch), watch:
        job.step()
    tell("checking the primitives")
    checked = check(watch)
    job.step()  # the memory is again as steps leave it
    with marked_update(job, watch), watch, watch.tracking():
        for _ in range(NUM_TRACKED):
            job.step()
    timer = run_alone_on_gpu if on_gpu else run_alone
    measured = Measured(job, watch, checked, effort, timer, clock, cache_bytes, on_gpu)
    while not measured.is_done():
        again = f", {measured.num_repeated} disturbed and repeated" if measured.num_repeated else ""
        phase = f"measuring, round {measured.num_rounds + 1} of {effort.num_rounds}{again}"
        tell(phase)
        measured.round(functools.partial(_tell_more, tell, phase))
    call_cost_s = 0.0 if on_gpu else _call_cost_s(clock)
    return measured.breakdown(call_cost_s, str(params["device"]))


def _tell_more(tell: Callable[[str], None], phase: str, words: str) -> None:
    tell(f"{phase}: {words}")


def check(watch: Watch) -> Checked:
    """Each primitive whose call in the model was kept, alone on the inputs of that call."""
    errors: Dict[Key, float] = {}
    wrong: Dict[Key, str] = {}
    for key, met in watch.met.items():
        if met.sample is None:
            continue
        with as_called(met):
            try:
                error, allowed = compare(met), tolerance_of(met)
            except RuntimeError as problem:  # an operator that leans on what was before it
                wrong[key] = f"it fails alone: {str(problem).strip().splitlines()[0]}"
                continue
            finally:
                met.sample = None
        if error <= allowed:
            errors[key] = error
        else:
            wrong[key] = (
                f"alone it differs from its call in the model by {error:.2g}; {allowed:.2g} is allowed"
            )
    return Checked(errors, wrong)


@torch.inference_mode()
def _call_cost_s(clock: Clock) -> float:
    """What it costs to call an operator as the watch does, beyond what a program's own call costs."""
    one, func = torch.ones(1), torch.ops.aten.neg.default
    watched = []
    for _ in range(NUM_CALIBRATED):
        args, kwargs = (one,), {}  # type: ignore[var-annotated]
        began = clock()
        func(*args, **kwargs)
        watched.append(clock() - began)
    plain = []
    for _ in range(NUM_CALIBRATED // 20):
        began = clock()
        for _ in range(20):
            torch.neg(one)
        plain.append((clock() - began) / 20)
    return max(0.0, statistics.median(watched) - statistics.median(plain)) / 1e9
