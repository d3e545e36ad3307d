"""Points that a single operator refuses are skipped with the reason when a study is planned."""

from typing import Any

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.registry import find_workload
from corewise.study.axes import AXES
from corewise.study.planning.feasibility import FeasibilityContext, MachineView, explain_infeasibility
from corewise.study.syntax.expressions import Expression

MACHINE = MachineView(num_cores=4, num_cpus=4, memory_bytes=16 * 10**9)


def explain(workload: str, **changes: Any) -> tuple[str, ...]:
    defaults = {name: 1 if isinstance(a.default, Expression) else a.default for name, a in AXES.items()}
    own = find_workload(workload)
    args = {f"args.{name}": value for name, value in own.parameters.items()}
    asked = {"workload": workload, "mode": "infer", "runtime": "torch", **defaults, "batch": 1, **args}
    return explain_infeasibility(TrialParameters.from_mapping({**asked, **changes}), FeasibilityContext(MACHINE, own))


@pytest.mark.parametrize("workload", ["convolution", "matrix_product", "lstm_cell"])
def test_a_primitive_can_be_measured_as_it_comes(workload: str) -> None:
    assert explain(workload) == ()


@pytest.mark.parametrize(
    ("workload", "changes", "expected"),
    [
        ("convolution", {"batch": 16}, "the problem defines the minibatch"),
        ("convolution", {"dtype": "int8", "args.direction": "BWD_W"}, "int8 is forward only"),
        ("convolution", {"args.reorders": "excluded"}, "use memory_format channels_last or blocked"),
        ("convolution", {"args.problem": "ic3ih5oc4kh3zz1"}, "unknown entry 'zz'"),
        ("convolution", {"args.problem": "pytorch-cpus:21"}, "1 to 20"),
        ("convolution", {"runtime": "numpy"}, "has no runtime numpy"),
        ("matrix_product", {"args.problem": "3x4:5x6"}, "4 columns, the second 5 rows"),
        ("matrix_product", {"memory_format": "channels_last"}, "is for images"),
        ("lstm_cell", {"dtype": "int8"}, "no dtype int8"),
        ("convolution", {"args.problem": "ic100000ih100000oc100000kh3"}, "of 1 needs 16000"),
        ("convolution", {"args.problem": "mb9999ic512ih200oc512kh1"}, "fits is 48: set args.mb to 48"),
        ("matrix_product", {"args.problem": "999999999x99:99x1"}, "largest number of rows M that fits is"),
        ("matrix_product", {"args.problem": "2x999999:999999x999999"}, "the second factor: reduce K or N"),
        ("lstm_cell", {"args.problem": "t9mb999999999sic8"}, "largest minibatch that fits is"),
        ("lstm_cell", {"args.problem": "t1mb1sic999999"}, "is for the weights: reduce sic, slc or dhc"),
        (
            "convolution",
            {"args.benchdnn": "/nonexistent/benchdnn"},
            "args.benchdnn: program /nonexistent/benchdnn does not exist",
        ),
        ("matrix_product", {"args.benchdnn": "/tmp"}, "is not executable"),
        ("lstm_cell", {"args.reorders": "excluded", "args.direction": "FWD_D"}, "inference only"),
        ("matmul", {"args.size": 10**5}, "the largest that fits is args.size 31622"),
    ],
)
def test_what_does_not_exist_has_its_reason(workload: str, changes: dict[str, Any], expected: str) -> None:
    (reason,) = explain(workload, **changes)
    assert expected in reason


def test_processes_share_the_memory() -> None:
    problem = {"args.problem": "mb48ic512ih200oc512kh1"}
    assert explain("convolution", **problem) == ()
    (reason,) = explain("convolution", **problem, processes=2)
    assert "the largest minibatch that fits is 24" in reason


@pytest.mark.parametrize("workload", ["convolution", "matrix_product", "lstm_cell"])
def test_what_is_said_to_fit_does_and_one_more_does_not(workload: str) -> None:
    own = find_workload(workload)
    problem, written = {
        "convolution": ("mb{}ic3ih32oc8kh3ph1", "args.mb to"),
        "matrix_product": ("{}x70:70x30", "M ="),
        "lstm_cell": ("t3mb{}sic16", "mb"),
    }[workload]

    def explain_shortage(num: int) -> str | None:
        params = TrialParameters(arguments={"problem": problem.format(num)})
        message: str | None = own.explain_memory_shortage(params, 10**7)  # type: ignore[union-attr]
        return message

    message = explain_shortage(10**9)
    assert message is not None
    largest = int(message.rsplit(" ", 1)[1])
    assert f"{written} {largest}" in message
    assert explain_shortage(largest) is None
    assert explain_shortage(largest + 1) is not None


def test_memory_that_is_not_known_refuses_nothing() -> None:
    own = find_workload("convolution")
    defaults = {name: 1 if isinstance(a.default, Expression) else a.default for name, a in AXES.items()}
    params = {"workload": "convolution", "mode": "infer", "runtime": "torch", **defaults, "batch": 1}
    params["args.problem"] = "ic100000ih100000oc100000kh3"
    machine = FeasibilityContext(MachineView(num_cores=4, num_cpus=4), own)
    assert explain_infeasibility(TrialParameters.from_mapping(params), machine) == ()
