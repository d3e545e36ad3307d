"""What planning keeps of a program of two calls, made by hand."""

from corewise.dataflow.kept_costs import Kept
from corewise.dataflow.schedule import Lane, Plan, Step, Task

KEPT = Kept(
    ({1: 1.0, 2: 0.5}, {1: 0.25, 2: 0.2}),
    (Task((0,), ()), Task((1,), (0,))),
    "moldable",
    Plan((Lane(0, 2), Lane(0, 1, True)), (Step(0, 0, ()), Step(1, 1, (0,))), 0.75),
    {"plain": 0.9, "moldable": 0.8},
    0.7,
)
