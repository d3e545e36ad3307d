"""Layers on fast kernels behave like torch's with hooks, changed parameters and wrong calls."""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.accelerate.winograd_cases import images
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import corewise
from corewise.accelerate.fast_kernels.use_fast_kernels import count_fast_layers
from corewise.accelerate.freeze.lstm_replacement import RowLstm
from corewise.accelerate.malleable.execute.cpp_executor import explain_missing_native

pytestmark = pytest.mark.torch
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
# Derivatives along a direction import decompositions that are scripted.
scripting_is_known = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def kernels(need: Callable[[bool, str], None]) -> None:
    problem = explain_missing_native()
    need(not problem, f"the C++ executor: {problem}")
    torch.manual_seed(5)


def convolution() -> tuple[Any, Any]:
    """Return a layer of torch and the same with fast kernels."""
    plain = nn.Conv2d(16, 32, 3, padding=1)
    return plain, corewise.use_fast_kernels(copy.deepcopy(plain))


def lstm(**options: Any) -> tuple[Any, Any]:
    plain = nn.LSTM(16, 24, **options)
    return plain, corewise.use_fast_kernels(copy.deepcopy(plain))


LOADED = """
import sys, torch
torch.manual_seed(5)
layers, x, steps, wanted, rows = torch.load(sys.argv[1], weights_only=False)
made = layers[0](x)
assert type(made.grad_fn).__name__ == "_WinogradFunctionBackward", made.grad_fn
torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
torch.testing.assert_close(layers[1](steps)[0], rows, rtol=1e-4, atol=1e-4)
"""


def test_a_model_from_a_file_runs_in_a_process_without_fast_kernels(tmp_path: Path) -> None:
    (plain, quick), (plain_rows, quick_rows) = convolution(), lstm()
    x, steps = images(2, 16, 20, 20), torch.randn(5, 32, 16)
    made = (nn.ModuleList([quick, quick_rows]), x, steps, plain(x).detach(), plain_rows(steps)[0].detach())
    torch.save(made, tmp_path / "made.pt")
    command = [sys.executable, "-c", LOADED, str(tmp_path / "made.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("channels", [3, 16])
def test_a_lazy_convolution_takes_whatever_channels_come(channels: int) -> None:
    quick = corewise.use_fast_kernels(nn.LazyConv2d(16, 3, padding=1))
    x = images(2, channels, 20, 20)
    made = quick(x)
    wanted = nn.functional.conv2d(x, quick.weight, quick.bias, padding=1)
    torch.testing.assert_close(made, wanted, **CLOSE)


@pytest.mark.parametrize(
    "changes",
    [{"stride": (2, 2)}, {"dilation": (2, 2)}, {"weight": nn.Parameter(torch.ones(8, 16, 3, 3))}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_layer_that_is_changed_afterwards_computes_what_it_says(changes: dict[str, Any]) -> None:
    plain, quick = convolution()
    for layer in (plain, quick):
        for name, value in {"bias": None, **changes}.items():
            setattr(layer, name, value)
    x = images(2, 16, 20, 20)
    torch.testing.assert_close(quick(x), plain(x), **CLOSE)


def test_an_lstm_computes_with_parameters_that_were_exchanged() -> None:
    plain, quick = lstm()
    x, others = torch.randn(5, 32, 16), {name: 2 * each.detach() for name, each in plain.named_parameters()}
    one, other = (torch.func.functional_call(layer, others, (x,))[0] for layer in (plain, quick))
    torch.testing.assert_close(other, one, **CLOSE)
    for layer in (plain, quick):
        weight_norm(layer, "weight_hh_l0")
        with torch.no_grad():
            layer.parametrizations.weight_hh_l0.original0.mul_(2)
    torch.testing.assert_close(quick(x)[0], plain(x)[0], **CLOSE)


@pytest.mark.parametrize("is_spread", [False, True])
def test_the_gradient_of_images_lies_as_they_do(is_spread: bool) -> None:
    layer, x = convolution()[1], images(2, 16, 20, 20).requires_grad_()
    dy = torch.ones(()).expand(2, 32, 20, 20) if is_spread else torch.ones(2, 32, 20, 20)
    [gradients] = torch.autograd.grad(layer(x), x, dy)
    assert gradients.stride() == x.stride()


def test_using_fast_kernels_does_not_evaluate_a_parametrization() -> None:
    layer = spectral_norm(nn.Conv2d(16, 16, 3))
    before = copy.deepcopy(layer.state_dict())
    assert count_fast_layers(corewise.use_fast_kernels(layer)) == 1
    torch.testing.assert_close(dict(layer.state_dict()), dict(before), rtol=0, atol=0)


def test_layers_work_inside_transforms_of_other_functions() -> None:
    x, steps, factor = images(2, 16, 20, 20), torch.randn(5, 32, 16), torch.tensor(2.0)
    for (plain, quick), given in ((convolution(), x), (lstm(), steps)):

        def scaled(value: Any, layer: Any, given: Any = given) -> Any:
            made = layer(given)
            return (value * (made[0] if isinstance(made, tuple) else made)).mean()

        one, other = (torch.func.grad(scaled)(factor, layer) for layer in (plain, quick))
        torch.testing.assert_close(other, one, **CLOSE)


def test_batched_gradients_are_those_of_torch() -> None:
    x, dy = images(2, 16, 20, 20).requires_grad_(), torch.randn(3, 2, 32, 20, 20)
    gradients = [torch.autograd.grad(layer(x), x, dy, is_grads_batched=True)[0] for layer in convolution()]
    torch.testing.assert_close(gradients[1], gradients[0], **CLOSE)


@scripting_is_known
def test_a_direction_goes_through_the_gradient_of_a_convolution() -> None:
    x, along = images(2, 16, 20, 20).requires_grad_(), torch.randn(2, 32, 20, 20)
    gradients = []
    for layer in convolution():
        y = layer(x)
        with forward_ad.dual_level():
            dy = forward_ad.make_dual(torch.ones_like(y), along)
            gradients.append(forward_ad.unpack_dual(torch.autograd.grad(y, x, dy)[0]).tangent)
    torch.testing.assert_close(gradients[1], gradients[0], **CLOSE)


@scripting_is_known
def test_a_direction_through_the_gradient_of_an_lstm_is_refused() -> None:
    x = torch.randn(5, 32, 16).requires_grad_()
    y = lstm()[1](x)[0]
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
        torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones_like(y), torch.ones_like(y)))


STATE = torch.zeros(1, 32, 24)


@pytest.mark.parametrize(
    "states",
    [STATE, STATE[0], (STATE[0], STATE[0]), (STATE,), (STATE,) * 3, (None, None), (STATE, STATE[:, 1:]), 5],
    ids=range(8),
)
def test_wrong_states_raise_the_error_of_torch(states: Any) -> None:
    problems = []
    for layer in lstm():
        with pytest.raises(Exception) as problem:  # noqa: PT011
            layer(torch.randn(5, 32, 16), states)
        problems.append((problem.type, str(problem.value)))
    assert problems[0] == problems[1]


def test_a_missing_image_raises_the_error_of_torch() -> None:
    for layer in convolution():
        with pytest.raises(TypeError, match="conv2d"):
            layer(None)


def test_an_lstm_with_fast_kernels_is_frozen_as_any_other() -> None:
    plain, quick = lstm()
    x = torch.randn(5, 32, 16)
    frozen = corewise.freeze(quick.eval(), (x,))
    assert any(isinstance(part, RowLstm) for part in frozen.modules())
    assert count_fast_layers(frozen) == 0
    assert count_fast_layers(quick) == 1
    torch.testing.assert_close(frozen(x)[0], plain(x)[0].detach(), **CLOSE)


def test_a_frozen_lstm_drops_nothing_in_any_mode() -> None:
    x = torch.randn(5, 32, 16)
    frozen = corewise.freeze(nn.LSTM(16, 24, num_layers=2, dropout=0.5).eval(), (x,))
    torch.testing.assert_close(frozen.train()(x)[0], frozen.eval()(x)[0])
