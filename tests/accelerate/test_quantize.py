"""Inference in int8: quantized layers, errors and refusals."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from corewise.accelerate.quantize.quantize_module import quantize, quantize_module
from corewise.accelerate.unsupported import Unsupported
from corewise.launch.code_settings import list_code_settings
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime

Params = Callable[..., TrialParameters]


def prepare(params: TrialParameters, context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def test_convolutions_get_scales_beforehand_and_stay_close(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="resnet18", dtype="int8", batch=2, image_size=64), alone)
    check = job.check()
    job.step()
    facts = job.read_facts()
    job.close()
    assert 1e-3 < check.error <= check.tolerance
    assert (facts["int8_scales"], facts["num_int8_layers"]) == ("static", 21)


def test_linear_and_recurrent_layers_are_scaled_as_they_run() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    inputs = torch.randn(16, 64)
    made = quantize_module(module, [(inputs,)])
    with torch.no_grad():
        wanted = module(inputs)
        error = float((made.module(inputs) - wanted).abs().max() / wanted.abs().max())
    assert (made.scaling, made.num_layers) == ("dynamic", 2)
    assert 0 < error < 0.05
    # A copy was quantized.
    assert type(module[0]) is nn.Linear


def test_the_line_of_code_that_an_answer_prints_gives_what_was_measured() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    batch = torch.randn(4, 3, 16, 16)
    names: dict[str, Any] = {"model": model, "batch": batch}
    exec(list_code_settings({"dtype": "int8"})["dtype: int8"], names)
    with torch.no_grad():
        wanted = model(batch)
        error = float((names["model"](batch) - wanted).abs().max() / wanted.abs().max())
        same = quantize_module(model, [(batch,)]).module(batch)
    assert 0 < error < 0.05
    assert torch.equal(names["model"](batch), same)


def test_models_that_cannot_be_quantized_and_missing_inputs_raise() -> None:
    with pytest.raises(ValueError, match="no convolution, linear or LSTM layer"):
        quantize(nn.LayerNorm(4), (torch.randn(2, 4),))
    with pytest.raises(ValueError, match="pass the inputs of each step as a tuple"):
        quantize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="pass the inputs of each step as a tuple"):
        quantize(nn.Linear(2, 2), torch.randn(2, 2))


def test_a_module_without_such_layers_is_refused() -> None:
    with pytest.raises(Unsupported, match="no convolution, linear or LSTM layer"):
        quantize_module(nn.LayerNorm(4), [(torch.randn(2, 4),)])


def test_a_module_that_cannot_be_traced_is_refused_with_the_reason() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Any) -> Any:
            return self.conv(x) if x.sum() > 0 else x

    with pytest.raises(Unsupported, match=r"torch\.fx cannot quantize this module: "):
        quantize_module(Branching(), [(torch.randn(2, 3, 4, 4),)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "train"}, "cannot be trained"),
        ({"execution": "script"}, "already compiled and folded"),
        ({"math": "vanilla"}, "its own kernels"),
        ({"workload": "matmul"}, "no layers to quantize"),
    ],
)
def test_points_without_int8_are_refused(
    params: Params, alone: RankContext, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(**{"workload": "resnet18", "dtype": "int8", "mode": "infer", **changes}), alone)
