"""Inference in int8: what is quantised, how far off it is, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from corewise.launcher.code_settings import code_settings  # noqa: E402
from corewise.runtimes.base import Infeasible, RankContext  # noqa: E402
from corewise.runtimes.registry import find_runtime  # noqa: E402
from corewise.runtimes.torch.quantization import quantised, quantize  # noqa: E402

Params = Callable[..., dict[str, Any]]


def prepare(params: dict[str, Any], context: RankContext) -> Any:
    runtime = find_runtime("torch")
    runtime.warm()
    return runtime.prepare(params, context)


def test_convolutions_get_scales_beforehand_and_stay_close(params: Params, alone: RankContext) -> None:
    job = prepare(params(workload="resnet18", dtype="int8", batch=2, image_size=64), alone)
    check = job.check()
    job.step()
    facts = job.facts()
    job.close()
    assert 1e-3 < check.error <= check.tolerance
    assert (facts["int8_scales"], facts["num_int8_layers"]) == ("static", 21)


def test_linear_and_recurrent_layers_are_scaled_as_they_run() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    inputs = torch.randn(16, 64)
    made = quantised(module, [(inputs,)])
    with torch.no_grad():
        wanted = module(inputs)
        error = float((made.module(inputs) - wanted).abs().max() / wanted.abs().max())
    assert (made.how, made.num_layers) == ("dynamic", 2)
    assert 0 < error < 0.05
    assert type(module[0]) is nn.Linear  # a copy was quantised


def test_the_line_of_code_that_an_answer_prints_gives_what_was_measured() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    batch = torch.randn(4, 3, 16, 16)
    names: dict[str, Any] = {"model": model, "batch": batch}
    exec(code_settings({"dtype": "int8"})["dtype: int8"], names)
    with torch.no_grad():
        wanted = model(batch)
        error = float((names["model"](batch) - wanted).abs().max() / wanted.abs().max())
        same = quantised(model, [(batch,)]).module(batch)
    assert 0 < error < 0.05
    assert torch.equal(names["model"](batch), same)


def test_a_model_that_cannot_be_quantised_and_inputs_that_are_none_are_told() -> None:
    with pytest.raises(ValueError, match="no convolution, linear or LSTM layer"):
        quantize(nn.LayerNorm(4), (torch.randn(2, 4),))
    with pytest.raises(ValueError, match="give the inputs of a step, as a tuple"):
        quantize(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="give the inputs of a step, as a tuple"):
        quantize(nn.Linear(2, 2), torch.randn(2, 2))


def test_a_module_without_such_layers_is_refused() -> None:
    with pytest.raises(Infeasible, match="no convolution, linear or LSTM layer"):
        quantised(nn.LayerNorm(4), [(torch.randn(2, 4),)])


def test_a_module_that_cannot_be_traced_is_refused_with_the_reason() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Any) -> Any:
            return self.conv(x) if x.sum() > 0 else x

    with pytest.raises(Infeasible, match=r"torch\.fx cannot quantise this module: "):
        quantised(Branching(), [(torch.randn(2, 3, 4, 4),)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "train"}, "cannot be trained"),
        ({"execution": "script"}, "compiled and folded already"),
        ({"math": "vanilla"}, "kernels of its own"),
        ({"workload": "matmul"}, "no layers to quantise"),
    ],
)
def test_points_without_int8_are_refused(
    params: Params, alone: RankContext, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=reason):
        prepare(params(**{"workload": "resnet18", "dtype": "int8", "mode": "infer", **changes}), alone)
