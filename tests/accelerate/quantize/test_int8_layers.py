"""int8 functions of single layers: errors against float64, odd sizes, and everything that stays float32."""

import copy
import io
import itertools
import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn

from corewise.accelerate.quantize import int8_layers
from corewise.accelerate.quantize.int8_layers import (
    Int8Convolution,
    Int8Linear,
    is_convolution,
    is_linear,
    is_transposed_linear,
)

pytestmark = pytest.mark.skipif(not int8_layers.has_int8_operators(), reason="torch has no int8 operators here")


class Conv1D(nn.Module):
    """A linear layer as in GPT-2, with a weight of inputs x outputs."""

    def __init__(self, num_outputs: int, num_inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_inputs, num_outputs) * 0.1)
        self.bias = nn.Parameter(torch.randn(num_outputs))

    def forward(self, x: Any) -> Any:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


def build(layer: Any, x: Any = None) -> Any:
    layer.eval().requires_grad_(False)
    if not isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return Int8Linear(layer, is_transposed=is_transposed_linear(layer))
    return Int8Convolution(layer, min(0.0, x.min().item()), x.max().item())


def compute_error(function: Any, x: Any) -> float:
    exact = copy.deepcopy(function.layer).double()(x.double())
    made = function(x)
    assert made.shape == exact.shape
    assert made.dtype == torch.float32
    return float((made.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (7, 64), (2, 3, 64), (2, 3, 5, 64)])
def test_a_linear_layer_is_exact_to_two_per_cent(shape: tuple[int, ...], bias: bool, by_row: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 50, bias=bias).eval().requires_grad_(False)
    function = Int8Linear(layer, by_row=by_row)
    for x in (torch.randn(shape), torch.rand(shape) + 3, -torch.rand(shape) - 3, torch.randn(shape) * 1e-6):
        assert 0 < compute_error(function, x) < 0.02


def test_inputs_that_are_not_contiguous_give_the_same() -> None:
    torch.manual_seed(0)
    function = build(nn.Linear(32, 8))
    wide = torch.randn(64, 10)
    for x in (wide[:32].t(), torch.randn(10, 64)[:, ::2], torch.randn(4, 32, 5).transpose(1, 2), wide[:32, :1].t()):
        assert not x.is_contiguous() or x.shape[0] == 1
        assert torch.equal(function(x), function(x.contiguous()))


def test_a_linear_layer_with_transposed_weights_is_recognised_and_exact() -> None:
    torch.manual_seed(0)
    layer = Conv1D(24, 40)
    assert is_transposed_linear(layer)
    assert compute_error(build(layer), torch.randn(3, 5, 40)) < 0.02
    # torch's own convolution has the same name in lower case, and other weights.
    assert not is_transposed_linear(nn.Conv1d(3, 3, 1))


PADDINGS = ((0, 0), (2, 1), (3, 1))
SIZES = list(itertools.product((1, 4, 8), ((1, 1), (3, 2)), PADDINGS, ((1, 1), (2, 3)), ((1, 1), (2, 1))))


@pytest.mark.parametrize(("groups", "kernel", "padding", "stride", "dilation"), SIZES)
def test_convolutions_of_all_sizes_are_exact_to_three_per_cent(
    groups: int, kernel: Any, padding: Any, stride: Any, dilation: Any
) -> None:
    torch.manual_seed(0)
    # Inputs far from zero show whether padding stays zero.
    x = torch.randn(2, 8, 9, 11) + 2
    layer = nn.Conv2d(8, 16, kernel, stride, padding, dilation, groups, bias=groups != 4)
    # Windows that hold nothing but padding are left to float32.
    if any(pad > d * (k - 1) for pad, d, k in zip(padding, dilation, kernel, strict=True)):
        assert not is_convolution(layer)
        return
    function = build(layer, x)
    assert 0 < compute_error(function, x) < 0.03
    assert compute_error(function, x.to(memory_format=torch.channels_last)) < 0.03
    assert compute_error(function, x[:1, :, :7]) < 0.03


@pytest.mark.parametrize("padding", [2, "same", "valid"])
def test_convolutions_over_sequences_are_images_of_height_one(padding: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 20)
    layer = nn.Conv1d(6, 8, 3, padding=padding, dilation=2)
    assert 0 < compute_error(build(layer, x), x) < 0.03


def test_layers_that_compute_differently_are_not_recognised() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Any) -> Any:
            return 2 * super().forward(input)

    class Renamed(nn.Linear):
        pass

    shadowed: Any = nn.Linear(2, 2)
    shadowed.forward = lambda x: x
    assert is_linear(Renamed(2, 2))
    assert not is_linear(Scaled(2, 2))
    assert not is_linear(shadowed)
    assert not is_linear(nn.Linear(2, 2).double())
    assert not is_linear(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert not is_convolution(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"))
    assert not is_convolution(nn.Conv2d(2, 2, 2, padding="same"))


@pytest.mark.parametrize("layer", [nn.Linear(8, 4), nn.Conv2d(8, 4, 1)], ids=["linear", "convolution"])
def test_calls_that_int8_does_not_support_give_what_the_layer_gives(layer: nn.Module) -> None:
    x = torch.randn(2, 8) if isinstance(layer, nn.Linear) else torch.randn(2, 8, 4, 4)
    plain = copy.deepcopy(layer).eval()
    function = build(layer, x)
    function.attach()
    assert not torch.equal(layer(x), plain(x))
    assert layer(x[:0]).shape == plain(x[:0]).shape
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), plain(x))
    needs = x.clone().requires_grad_()
    layer(needs).sum().backward()
    assert needs.grad is not None
    with pytest.raises(RuntimeError):
        layer(x[:, :5])
    function.detach()
    assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize("by_row", [False, True])
def test_nan_infinity_and_zeros_are_as_in_float32(by_row: bool) -> None:
    layer = nn.Linear(8, 4).eval().requires_grad_(False)
    function = Int8Linear(layer, by_row=by_row)
    x = torch.randn(3, 8)
    for value in (float("nan"), float("inf"), 3e38):
        x[0, 0] = value
        assert torch.allclose(function(x), layer(x), equal_nan=True)
    assert torch.allclose(function(torch.zeros(3, 8)), layer(torch.zeros(3, 8)))


def test_seven_bits_of_activations_are_used_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sums of pairs stay below the limit of 16 bits.
    assert 2 * int8_layers.LEVELS_WITHOUT_VNNI * int8_layers.LARGEST_WEIGHT < 2**15
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 6)
    assert 0.005 < compute_error(build(nn.Conv2d(8, 8, 3), x), x) < 0.04
    for by_row in (False, True):
        layer = nn.Linear(64, 64).eval().requires_grad_(False)
        assert 0.005 < compute_error(Int8Linear(layer, by_row=by_row), torch.randn(9, 64)) < 0.04


SATURATING = """
import torch
from torch import nn
from corewise.accelerate.quantize.int8_layers import Int8Convolution, Int8Linear

torch.set_grad_enabled(False)
x = torch.rand(1, 32, 14, 14) * 0.1 + 0.9
convolution = nn.Conv2d(32, 32, 3).eval()
linear = nn.Linear(14, 32).eval()
for layer in (convolution, linear):
    layer.weight.fill_(0.5)
for function in (Int8Convolution(convolution, 0.0, 1.0), Int8Linear(linear), Int8Linear(linear, by_row=True)):
    wanted = function.layer(x)
    print(float((function(x) - wanted).norm() / wanted.norm()))
"""


@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_the_largest_sums_do_not_saturate_without_vnni(instructions: str) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    command = [sys.executable, "-c", SATURATING]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    errors = [float(line) for line in made.stdout.split()]
    assert len(errors) == 3
    assert max(errors) < 0.01


def test_a_channel_of_zeros_stays_zero() -> None:
    layer = nn.Linear(16, 4, bias=False)
    with torch.no_grad():
        layer.weight[1] = 0
    assert torch.equal(build(layer)(torch.randn(3, 16))[:, 1], torch.zeros(3))


def test_changed_weights_are_packed_again() -> None:
    torch.manual_seed(0)
    function = build(nn.Linear(16, 4))
    x = torch.randn(3, 16)
    before = function(x)
    function.layer.load_state_dict({"weight": torch.randn(4, 16), "bias": torch.randn(4)})
    assert compute_error(function, x) < 0.02
    function.layer.weight = nn.Parameter(torch.randn(4, 16), requires_grad=False)
    assert compute_error(function, x) < 0.02
    assert not torch.allclose(function(x), before, atol=0.1)


def test_copies_and_saved_layers_give_the_same() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 6, 6)
    network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Linear(4, 3))
    for layer in network:
        build(layer, x).attach()
    wanted = network(x)
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    again: Any
    for again in (copy.deepcopy(network), torch.load(file, weights_only=False)):
        assert torch.equal(again(x), wanted)
        # The copy computes with its own weights.
        again[1].weight.zero_()
        again[1].bias.zero_()
        assert torch.equal(again(x), torch.zeros_like(wanted))
    assert torch.equal(network(x), wanted)
