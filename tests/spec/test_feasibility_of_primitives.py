"""What a single operator refuses by itself is skipped with its reason when a study is planned."""

from typing import Any

import pytest

from corewise.spec.axes import AXES
from corewise.spec.expressions import Expression
from corewise.spec.feasibility import Circumstances, MachineView, reasons_against
from corewise.workloads.registry import find_workload

MACHINE = MachineView(num_cores=4, num_cpus=4)


def reasons(workload: str, **changes: Any) -> tuple[str, ...]:
    defaults = {name: 1 if isinstance(a.default, Expression) else a.default for name, a in AXES.items()}
    own = find_workload(workload)
    args = {f"args.{name}": value for name, value in own.parameters.items()}
    asked = {"workload": workload, "mode": "infer", "runtime": "torch", **defaults, "batch": 1, **args}
    return reasons_against({**asked, **changes}, Circumstances(MACHINE, own))


@pytest.mark.parametrize("workload", ["convolution", "matrix_product", "lstm_cell"])
def test_a_primitive_can_be_measured_as_it_comes(workload: str) -> None:
    assert reasons(workload) == ()


@pytest.mark.parametrize(
    ("workload", "changes", "words"),
    [
        ("convolution", {"batch": 16}, "the problem has its own minibatch"),
        ("convolution", {"dtype": "int8", "args.direction": "BWD_W"}, "int8 is forward only"),
        ("convolution", {"args.reorders": "excluded"}, "take memory_format channels_last or blocked"),
        ("convolution", {"args.problem": "ic3ih5oc4kh3zz1"}, "unknown entry 'zz'"),
        ("convolution", {"args.problem": "pytorch-cpus:21"}, "1 to 20"),
        ("convolution", {"runtime": "numpy"}, "has no runtime numpy"),
        ("matrix_product", {"args.problem": "3x4:5x6"}, "4 columns, the second 5 rows"),
        ("matrix_product", {"memory_format": "channels_last"}, "is for images"),
        ("lstm_cell", {"dtype": "int8"}, "no dtype int8"),
        ("lstm_cell", {"args.reorders": "excluded", "args.direction": "FWD_D"}, "inference only"),
    ],
)
def test_what_does_not_exist_has_its_reason(workload: str, changes: dict[str, Any], words: str) -> None:
    (found,) = reasons(workload, **changes)
    assert words in found
