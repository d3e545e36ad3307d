"""Break a job's step down: time each operator in the model, then each distinct one in isolation.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any, Callable, Dict

import torch

from corewise.measured.parameters import Device, DType, MemoryFormat, TrialParameters
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.runtimes.torch.breakdown.isolated_timing import (
    compare_with_model,
    find_tolerance,
    time_isolated,
    time_isolated_on_gpu,
)
from corewise.measured.runtimes.torch.breakdown.operator_recorder import (
    Clock,
    Key,
    OperatorRecorder,
    enter_recorded_modes,
    record_event,
)
from corewise.measured.runtimes.torch.breakdown.timing_rounds import (
    BreakdownEffort,
    PrimitiveChecks,
    RoundMeasurements,
    mark_update,
)
from corewise.measured.runtimes.torch.cache_size import read_last_level_cache_bytes
from corewise.measured.runtimes.torch.modules.module_job import ModuleJob
from corewise.measured.runtimes.user_steps import StepJob
from corewise.measured.workloads.model_breakdown import Breakdown

# Bytes of recorded calls, with which isolated primitives are compared.
SAMPLE_BYTES = 2**29
NUM_CALIBRATED = 2000
NUM_TRACKED = 2


def refuse_unsupported_job(job: Any, params: TrialParameters) -> None:
    """Raise Infeasible, with the reason, for jobs that cannot be broken down into operators."""
    if isinstance(job, StepJob):
        raise Infeasible(
            "the factory returns a step, not a module: it cannot be broken down into operators. "
            "Return (module, inputs) instead, see docs/own-workload.md"
        )
    if not isinstance(job, ModuleJob):
        raise Infeasible(f"{params.workload} is already a primitive or kernel: only models can be broken down")
    if params.execution != "eager":
        raise Infeasible(
            f"execution {params.execution}: fused kernels cannot be run in isolation; use execution: eager"
        )
    if params.memory_format == MemoryFormat.BLOCKED or params.dtype == DType.INT8:
        what = "memory_format blocked" if params.memory_format == MemoryFormat.BLOCKED else "dtype int8"
        raise Infeasible(f"{what}: its tensors are opaque, so no similar inputs can be drawn")
    if params.processes > 1:
        raise Infeasible("processes: a breakdown needs a single process; use processes: 1")


def measure_breakdown(
    job: ModuleJob,
    params: TrialParameters,
    effort: BreakdownEffort = BreakdownEffort(),  # noqa: B008  (frozen)
    report: Callable[[str], None] = lambda _phase: None,
    clock: Clock = time.perf_counter_ns,
) -> Breakdown:
    """Measure the step and its primitives by turns; the job must be checked and warmed up before."""
    refuse_unsupported_job(job, params)
    on_gpu = params.device == Device.CUDA
    cache_bytes = read_last_level_cache_bytes(on_gpu)
    recorder = OperatorRecorder(record_event if on_gpu else clock, cache_bytes, SAMPLE_BYTES)
    report("recording its operators")
    with mark_update(job, recorder), recorder:
        job.step()
    report("checking the primitives")
    checked = check_primitives(recorder)
    # A plain step restores the usual state of memory.
    job.step()
    with mark_update(job, recorder), recorder, recorder.track_cache():
        for _ in range(NUM_TRACKED):
            job.step()
    timer = time_isolated_on_gpu if on_gpu else time_isolated
    measured = RoundMeasurements(job, recorder, checked, effort, timer, clock, cache_bytes, on_gpu)
    while not measured.is_done():
        again = f", {measured.num_repeated} disturbed and repeated" if measured.num_repeated else ""
        phase = f"measuring, round {measured.num_rounds + 1} of {effort.num_rounds}{again}"
        report(phase)
        measured.measure_round(functools.partial(_report_detail, report, phase))
    call_cost_s = 0.0 if on_gpu else _measure_call_cost_s(clock)
    return measured.build_breakdown(call_cost_s, params.device.value)


def _report_detail(report: Callable[[str], None], phase: str, detail: str) -> None:
    report(f"{phase}: {detail}")


def check_primitives(recorder: OperatorRecorder) -> PrimitiveChecks:
    """Run each primitive with a recorded call on the inputs of that call, and compare results."""
    errors: Dict[Key, float] = {}
    wrong: Dict[Key, str] = {}
    for key, operator in recorder.operators.items():
        if operator.sample is None:
            continue
        with enter_recorded_modes(operator):
            try:
                error, allowed = compare_with_model(operator), find_tolerance(operator)
            except RuntimeError as problem:
                # The operator depends on preceding ones.
                wrong[key] = f"it fails in isolation: {str(problem).strip().splitlines()[0]}"
                continue
            finally:
                operator.sample = None
        if error <= allowed:
            errors[key] = error
        else:
            wrong[key] = f"in isolation it differs from its call in the model by {error:.2g}; {allowed:.2g} is allowed"
    return PrimitiveChecks(errors, wrong)


@torch.inference_mode()
def _measure_call_cost_s(clock: Clock) -> float:
    """Measure the overhead of calling an operator as the recorder does, beyond a plain call."""
    one, func = torch.ones(1), torch.ops.aten.neg.default
    recorded = []
    for _ in range(NUM_CALIBRATED):
        args, kwargs = (one,), {}  # type: ignore[var-annotated]
        began = clock()
        func(*args, **kwargs)
        recorded.append(clock() - began)
    plain = []
    for _ in range(NUM_CALIBRATED // 20):
        began = clock()
        for _ in range(20):
            torch.neg(one)
        plain.append((clock() - began) / 20)
    return max(0.0, statistics.median(recorded) - statistics.median(plain)) / 1e9
