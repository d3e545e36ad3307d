"""A cached plan of a program with two calls."""

from corewise.accelerate.malleable.plan.cost_cache import CachedPlan
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask

CACHED_PLAN = CachedPlan(
    ({1: 1.0, 2: 0.5}, {1: 0.25, 2: 0.2}),
    (OperatorTask((0,), ()), OperatorTask((1,), (0,))),
    "moldable",
    LanePlan((Lane(0, 2), Lane(0, 1, True)), (LaneStep(0, 0, ()), LaneStep(1, 1, (0,))), 0.75),
    {"plain": 0.9, "moldable": 0.8},
    0.7,
)
