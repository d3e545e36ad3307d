"""Frozen networks use Winograd convolution where it is supported and faster, and compute the same."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.accelerate.winograd_cases import MOST_ERROR, built, error, images
from torch import nn
from torch.nn import functional

from corewise.accelerate.fast_kernels import kernel_support, winograd_convolution
from corewise.accelerate.fast_kernels.winograd_convolution import WinogradConvolution, supports_layer
from corewise.accelerate.freeze.freeze_module import freeze
from corewise.accelerate.kernels.build import NativeBuildError
from corewise.accelerate.malleable.module_wrapper import malleable
from corewise.measured.runtimes.registry import find_runtime

# The fixture is used by pytest.
__all__ = ["built"]


def layers_of(frozen: Any) -> list[WinogradConvolution]:
    return [layer for layer in frozen.modules() if isinstance(layer, WinogradConvolution)]


class Block(nn.Module):
    """Convolutions, two of them with a shortcut, and an activation."""

    def __init__(self, activation: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(16, 16, k, padding=k // 2) for k in (5, 3, 3))
        self.last, self.norm, self.activation = nn.Conv2d(16, 32, 3), nn.BatchNorm2d(16), activation

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        x = torch.relu(self.norm(self.third(torch.relu(self.second(x)))) + x)
        return self.activation(self.last(x))


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=str
)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_frozen_layers_compute_the_same_for_all_sizes(activation: Any, memory_format: Any) -> None:
    module = Block(activation).eval()
    frozen = freeze(module, torch.randn(2, 16, 12, 12).contiguous(memory_format=memory_format), winograd=True)
    assert len(layers_of(frozen)) == 4
    assert any(layer.overwrites for layer in layers_of(frozen))
    wide = copy.deepcopy(module).double()
    for sizes in ((2, 16, 12, 12), (1, 16, 12, 12), (3, 16, 9, 21), (1, 16, 3, 3)):
        x = torch.randn(sizes).contiguous(memory_format=memory_format)
        before = x.clone()
        made, plain = frozen(x), module(x)
        assert error(made, wide(x.double())) < MOST_ERROR
        assert made.is_contiguous(memory_format=memory_format) == plain.is_contiguous(memory_format=memory_format)
        assert torch.equal(x, before)


class Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Any, y: Any) -> Any:
        return functional.relu(y + self.layer(x))


def test_a_sum_spreads_its_terms_out_and_takes_other_formats() -> None:
    module, example = Added().eval(), images(2, 16, 5, 6)
    frozen = freeze(module, (example, example.clone()), winograd=True)
    assert len(layers_of(frozen)) == 1
    for shape in ((2, 16, 5, 6), (1, 16, 5, 6), (3, 2, 16, 5, 6), (2, 16, 1, 1)):
        x, y = images(2, 16, 5, 6), torch.randn(shape)
        torch.testing.assert_close(frozen(x, y), module(x, y), rtol=1e-4, atol=1e-5)
    x, y = images(2, 16, 5, 6), images(2, 16, 5, 6).double()
    torch.testing.assert_close(frozen(x, y).double(), module(x, y).double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "is_suited"),
    [
        ({}, True),
        ({"kernel_size": 5, "padding": 2}, True),
        ({"padding": 2, "bias": False}, True),
        ({"kernel_size": 1}, False),
        ({"kernel_size": (3, 5)}, False),
        ({"stride": 2}, False),
        ({"dilation": 2}, False),
        ({"groups": 2}, False),
        ({"in_channels": 24}, False),
        ({"out_channels": 8}, False),
    ],
    ids=str,
)
def test_unsupported_layers_stay_with_onednn(changed: dict[str, Any], is_suited: bool) -> None:
    layer = nn.Conv2d(**{"in_channels": 32, "out_channels": 32, "kernel_size": 3, **changed})
    assert supports_layer(layer) is is_suited
    x = images(2, layer.in_channels, 9, 8)
    frozen = freeze(nn.Sequential(layer).eval(), x, winograd=True)
    assert len(layers_of(frozen)) == is_suited
    assert error(frozen(x), copy.deepcopy(layer).double()(x.double())) < MOST_ERROR


def test_each_layer_uses_the_kernel_that_is_clearly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    gains: dict[str, float] = {}

    def measured(network: Any, one: Any, other: Any, inputs: Any) -> dict[str, float]:
        gains.update(zip(one, (1.05, 1.2, 0.5, 3.0), strict=True))
        return gains

    monkeypatch.setattr(winograd_convolution, "_measure_speedups", measured)
    frozen = freeze(Block(nn.ReLU()).eval(), images(2, 16, 8, 8))
    modules = dict(frozen.named_modules())
    assert [isinstance(modules[name], WinogradConvolution) for name in gains] == [False, True, False, True]


def test_both_kernels_are_measured_without_side_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, float]] = []
    measure = winograd_convolution._measure_speedups

    def noted(*given: Any) -> dict[str, float]:
        seen.append(measure(*given))
        return seen[-1]

    monkeypatch.setattr(winograd_convolution, "_measure_speedups", noted)
    module, x = Block(nn.ReLU()).eval(), images(2, 16, 8, 8)
    before = x.clone()
    freeze(module, x)
    [gains] = seen
    assert len(gains) == 4
    assert all(0 < gain < math.inf for gain in gains.values())
    assert torch.equal(x, before)


def test_without_the_cpp_module_all_layers_stay_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> None:
        raise NativeBuildError("no C++ compiler is found")

    monkeypatch.setattr(kernel_support, "load_native_module", cannot)
    module, x = Block(nn.ReLU()).eval(), images(2, 16, 8, 8)
    for wanted in (None, True):
        frozen = freeze(module, x, winograd=wanted)
        assert not layers_of(frozen)
        assert error(frozen(x), module(x).double()) < MOST_ERROR


@pytest.mark.parametrize("gain", [2.0, 0.5])
def test_the_record_counts_the_winograd_layers(
    gain: float, params: Any, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        winograd_convolution, "_measure_speedups", lambda network, one, *others: dict.fromkeys(one, gain)
    )
    runtime = find_runtime("torch")
    runtime.warm()
    point = {"workload": "resnet18", "image_size": 32, "batch": 2, "freezing": "full"}
    job = runtime.prepare(params(**point), alone)
    assert job.check().passed
    assert job.read_facts()["num_winograd_layers"] == (13 if gain > 1 else 0)


def test_none_are_used_where_they_are_not_wanted_or_in_bfloat16() -> None:
    module, x = Block(nn.ReLU()).eval(), images(2, 16, 8, 8)
    assert not layers_of(freeze(module, x, winograd=False))
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert not layers_of(freeze(module, x, torch.bfloat16, winograd=True))


class Branches(nn.Module):
    """Two branches that may run concurrently."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Block(nn.ReLU()), Block(nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.one(x) - self.other(x)


@pytest.mark.parametrize("executor", ["python", "native"])
def test_frozen_layers_run_concurrently(executor: str) -> None:
    module, x = Branches().eval(), images(2, 16, 12, 12)
    frozen = freeze(module, x, winograd=True)
    options = {"executor": executor, "planning_s": 0.05, "keep": False, "run": "planned"}
    fast = malleable(frozen, (x,), **options)
    try:
        for _ in range(3):
            fresh = images(2, 16, 12, 12)
            assert torch.equal(fast(fresh), frozen(fresh))
        # The model has a plan.
        assert "tasks on" in fast.explain()
    finally:
        fast.close()


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.first(x))
        return torch.relu(self.third(torch.relu(self.second(x))) + x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_layer_that_overwrites_a_shortcut_passes_torchs_compiler() -> None:
    module, x = Shortcut().eval(), images(2, 16, 12, 12).contiguous(memory_format=torch.channels_last)
    frozen = freeze(module, x, winograd=True)
    assert [layer.overwrites for layer in layers_of(frozen)] == [False, False, True]
    with torch.no_grad():
        compiled = torch.compile(frozen, backend="aot_eager")
        torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)


def test_a_copy_shares_its_weights_and_none_can_be_saved() -> None:
    frozen = freeze(Block(nn.ReLU()).eval(), images(2, 16, 8, 8), winograd=True)
    pairs = zip(layers_of(copy.deepcopy(frozen)), layers_of(frozen), strict=True)
    assert all(one is other for one, other in pairs)
    with pytest.raises(TypeError, match="save the model itself"):
        pickle.dumps(layers_of(frozen)[0])
    with pytest.raises(RuntimeError, match="prepared weights cannot be moved or converted"):
        frozen.double()
