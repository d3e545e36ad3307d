"""What jax and tensorflow lack is skipped with its reason, and what they have is measured."""

from typing import Any

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.study.axes import AXES
from corewise.study.planning.feasibility import FeasibilityContext, MachineView, explain_infeasibility
from corewise.study.syntax.expressions import Expression

MACHINE = MachineView(num_cores=4, num_cpus=8, has_cuda=True, num_gpus=1, libraries=frozenset({"libgomp", "libiomp5"}))


def explain(**changes: Any) -> tuple[str, ...]:
    defaults = {name: 1 if isinstance(a.default, Expression) else a.default for name, a in AXES.items()}
    params = {"workload": "own.py:make", "mode": "infer", **defaults, **changes}
    return explain_infeasibility(TrialParameters.from_mapping(params), FeasibilityContext(MACHINE))


@pytest.mark.parametrize("runtime", ["jax", "tensorflow"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"memory_format": "channels_last"}, "runtime has no memory_format: channels_last; leave it contiguous"),
        ({"memory_format": "blocked"}, "runtime has no memory_format: blocked; leave it contiguous"),
        ({"execution": "compile"}, "runtime has no execution: compile; leave it eager"),
        ({"execution": "malleable"}, "runtime has no execution: malleable; leave it eager"),
        ({"freezing": "fold"}, "runtime has no freezing: fold; leave it none"),
        ({"denormals": "flush"}, "runtime has no denormals: flush; leave it default"),
        ({"openmp": "libiomp5"}, "runtime has no openmp: libiomp5; leave it default"),
        ({"wait_policy": "active"}, "runtime has no wait_policy: active; leave it default"),
        ({"data": "/images"}, "runtime has no data: /images; leave it synthetic"),
        ({"float32_precision": "bf16"}, "has no float32_precision: bf16 on cpu; it has tf32 on cuda"),
        ({"float32_precision": "tf32"}, "has no float32_precision: tf32 on cpu; it has tf32 on cuda"),
        ({"float32_precision": "bf16", "device": "cuda"}, "has no float32_precision: bf16 on cuda"),
        ({"float32_precision": "tf32", "device": "cuda", "dtype": "float64"}, "dtype is float64"),
        ({"math": "vanilla", "device": "cuda"}, "math: vanilla disables oneDNN, which"),
        ({"bind": "core", "threads": 2}, "bind: core is not possible"),
        ({"dtype": "float16"}, "float16 is not supported on device: cpu"),
    ],
)
def test_what_a_framework_lacks_has_its_reason(runtime: str, changes: dict[str, Any], reason: str) -> None:
    (result,) = explain(runtime=runtime, **changes)
    assert reason in result


def test_jax_uses_no_onednn_and_has_no_operators_side_by_side() -> None:
    assert explain(runtime="jax", math="vanilla") == ("math: vanilla disables oneDNN, which jax on cpu does not use",)
    assert explain(runtime="jax", interop_threads=2) == ("the jax runtime has no interop_threads: 2; leave it null",)


@pytest.mark.parametrize("runtime", ["jax", "tensorflow"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "float64", "threads": 4},
        {"dtype": "bfloat16", "allocator": "retain", "bind": "none"},
        {"float32_precision": "tf32", "device": "cuda"},
        {"dtype": "float16", "device": "cuda"},
        {"bind": "core", "threads": 1},
        {"processes": 2, "threads": 2, "placement": "spread"},
    ],
)
def test_what_a_framework_has_is_measured(runtime: str, changes: dict[str, Any]) -> None:
    assert explain(runtime=runtime, **changes) == ()


def test_tensorflow_has_onednn_to_switch_off_and_operators_side_by_side() -> None:
    assert explain(runtime="tensorflow", math="vanilla", interop_threads=2) == ()
