"""A breakdown for tests: three categories of work, one primitive far slower in the model than alone."""

from dataclasses import replace

from corewise.explain.ceiling_verdicts import PrimitivesAnswer, judge_primitives, judge_shares
from corewise.machine.ceilings.table import Ceiling, Ceilings
from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.model_breakdown import Breakdown, Primitive

CONV = Primitive(
    operator="conv2d",
    category="convolution",
    phase="forward",
    shapes="16x64x56x56, 64x64x3x3",
    layout="contiguous",
    dtype="float32",
    parameters="padding 1",
    problem="mb16ic64ih56oc64oh56kh3ph1",
    num_calls=4,
    in_model_s=0.071,
    alone_s=0.070,
    alone_best_s=0.068,
    flops=0.8e9,
    traffic_bytes=2.6e7,
    check_error=1e-7,
)
POOL = replace(
    CONV,
    operator="max_pool2d",
    category="pooling",
    shapes="16x64x112x112",
    problem="",
    num_calls=1,
    in_model_s=0.018,
    alone_s=0.010,
    alone_best_s=0.009,
    flops=0.0,
    traffic_bytes=6.4e7,
)
VIEW = replace(
    POOL, operator="flatten", category="view", shapes="16x512x1x1", in_model_s=1e-6, alone_s=1e-6, traffic_bytes=0.0
)
ITEM = replace(
    POOL,
    operator="item",
    category="other arithmetic",
    shapes="1",
    in_model_s=0.001,
    alone_s=None,
    alone_best_s=None,
    traffic_bytes=4.0,
    why_not_alone="no",
)
PARAMS = {
    "workload": "resnet18",
    "device": "cpu",
    "placement": "compact",
    "memory_format": "contiguous",
    "dtype": "float32",
    "float32_precision": "default",
    "breakdown": {},
}


def breakdown(**changes: object) -> Breakdown:
    made = Breakdown(
        step_s=0.1,
        watched_step_s=0.11,
        primitives=(CONV, POOL, ITEM, VIEW),
        steps_s=(0.1, 0.1),
        sums_over_steps=(0.8, 0.82),
        call_cost_s=1e-6,
        cache_bytes=2**25,
        num_checked=3,
        check_error=1e-7,
        num_threads=2,
        device="cpu",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def ceiling(operation: str, dtype: str, best: float) -> Ceiling:
    return Ceiling(
        operation=operation,
        dtype=dtype,
        device="cpu",
        threads=2,
        placement="compact",
        nodes=(0,),
        gpu=None,
        best=best,
        median=best,
        num_samples=5,
        size=1,
    )


CEILINGS = Ceilings(
    runtime="torch",
    version="2.0",
    host_class="h",
    allocation=((2, 2),),
    hostname="here",
    cpu_model="A CPU",
    measured_at="2026-01-01T00:00:00Z",
    took_s=1.0,
    figures=(ceiling("triad", "float64", 32.0), ceiling("product", "float32", 100.0)),
)


def answer(found: Breakdown | None = None, ceilings: Ceilings | None = CEILINGS, **params: object) -> PrimitivesAnswer:
    found = found or breakdown()
    all_params = TrialParameters.from_mapping({**PARAMS, **params})
    judged = judge_primitives(found, all_params, ceilings)
    return PrimitivesAnswer(
        subject="resnet18",
        asked=("infer", "batch 16", "2 threads"),
        options=("--mode", "infer", "--batch", "16", "--set", "threads=2"),
        machine="2 cores of A CPU",
        versions={"torch": "2.0"},
        params=all_params,
        breakdown=found,
        primitives=judged,
        shares=judge_shares(found, judged),
        ceilings_of="of here" if ceilings else "",
    )
