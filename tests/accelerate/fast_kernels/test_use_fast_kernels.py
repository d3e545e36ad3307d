"""Layers on fast kernels compute what torch computes, including gradients."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.accelerate.winograd_cases import MOST_ERROR, built, error, images, weights
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import corewise
from corewise.accelerate.fast_kernels import use_fast_kernels as fast_kernels
from corewise.accelerate.fast_kernels.use_fast_kernels import count_fast_layers, use_fast_kernels
from corewise.accelerate.kernels.build import NativeBuildError
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.runtimes.torch.modules.network import build_network
from corewise.measured.workloads.models.layered_model import has_own_kernel
from corewise.measured.workloads.models.layers import walk_layers
from corewise.measured.workloads.registry import find_workload

# The fixture is used by pytest.
__all__ = ["built"]
Params = Callable[..., TrialParameters]
CONVOLVES, LEARNS = "winograd_changing_convolution", "winograd_weight_gradient"


@pytest.fixture(autouse=True)
def learning(built: None) -> Any:
    with torch.enable_grad():
        yield


class CountingMode(TorchDispatchMode):
    """Counts our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "corewise":
            self.names.append(func._schema.name.removeprefix("corewise::"))
        return func(*args, **(kwargs or {}))


class Mixed(nn.Module):
    """Convolutions with and without a fast kernel, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 48, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(48)
        self.third = nn.Conv2d(48, 32, 5, padding=2)
        self.lower = nn.Conv2d(32, 32, 3, stride=2)
        self.rows = nn.LSTM(32, 10, num_layers=2, bidirectional=True)
        self.last = nn.Linear(20, 5)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.norm(self.second(self.first(x))))
        x = self.lower(self.third(x)).flatten(2).permute(2, 0, 1)
        return self.last(self.rows(x)[0].mean(0))


def mixed() -> Any:
    return laid_out(Mixed())


def laid_out(layer: Any) -> Any:
    return layer.to(memory_format=torch.channels_last)


def gradients(model: nn.Module, x: Any) -> list[Any]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [each.grad.clone() for each in model.parameters()]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 1)], ids=str)
@pytest.mark.parametrize(
    ("batch", "channels", "results", "height", "width"),
    [(1, 16, 16, 5, 5), (3, 48, 16, 7, 9), (1, 64, 80, 15, 8), (2, 144, 208, 14, 14), (40, 16, 32, 17, 6)],
)
def test_each_of_the_three_products_is_that_of_float64(
    batch: int, channels: int, results: int, height: int, width: int, padding: Any, kernel: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    x, weight = images(batch, channels, height, width), weights(results, channels, kernel)
    bias = torch.randn(results)
    wide = [each.double().requires_grad_() for each in (x, weight, bias)]
    wanted = functional.conv2d(*wide, padding=padding)
    dy = images(*wanted.shape)
    wanted_dx, wanted_dw, _ = torch.autograd.grad(wanted, wide, dy.double())
    ops, around = torch.ops.corewise, [kernel - 1 - each for each in padding]
    made = ops.winograd_changing_convolution(x, weight, bias, padding, False)
    dx = ops.winograd_changing_convolution(dy, weight, None, around, True)
    dw = ops.winograd_weight_gradient(x, dy, kernel, padding)
    assert (made.shape, dx.shape, dw.shape) == (wanted.shape, x.shape, weight.shape)
    assert error(made, wanted) < MOST_ERROR
    assert error(dx, wanted_dx) < MOST_ERROR
    assert error(dw, wanted_dw) < 2 * MOST_ERROR


def test_long_sums_of_gradients_keep_their_digits() -> None:
    x, dy = images(64, 16, 32, 32), images(64, 16, 32, 32)
    wide = torch.nn.grad.conv2d_weight(x.double(), (16, 16, 3, 3), dy.double(), padding=1)
    assert error(torch.ops.corewise.winograd_weight_gradient(x, dy, 3, (1, 1)), wide) < MOST_ERROR


def test_a_model_learns_the_same() -> None:
    plain, x = mixed(), images(6, 3, 17, 13)
    own = corewise.use_fast_kernels(copy.deepcopy(plain))
    exact = copy.deepcopy(plain).double()
    wanted = gradients(exact, x.double())
    for got, torchs, right in zip(gradients(own, x), gradients(plain, x), wanted, strict=True):
        assert error(got, right) < 1e-5 + 10 * error(torchs, right)
    assert torch.allclose(own(x), plain(x), rtol=1e-4, atol=1e-5)
    assert torch.equal(own.norm.num_batches_tracked, plain.norm.num_batches_tracked)


def test_supported_layers_use_the_kernel_in_both_passes() -> None:
    model, x = use_fast_kernels(mixed()), images(6, 3, 17, 13)
    assert count_fast_layers(model) == 3
    with CountingMode() as noted:
        gradients(model, x)
    # Two layers run a forward and a backward pass.
    assert noted.names.count(CONVOLVES) == 4
    assert noted.names.count(LEARNS) == 2
    assert any("lstm" in name for name in noted.names)


def test_without_gradients_only_results_are_computed() -> None:
    layer, x = use_fast_kernels(laid_out(nn.Conv2d(16, 16, 3, padding=1))), images(8, 16, 9, 9)
    with CountingMode() as noted, torch.no_grad():
        made = layer(x)
    assert noted.names == [CONVOLVES]
    assert error(made, copy.deepcopy(layer).double()(x.double())) < MOST_ERROR


@pytest.mark.parametrize("learns", ["weight", "bias", "x"])
def test_only_required_gradients_are_computed(learns: str) -> None:
    layer = use_fast_kernels(laid_out(nn.Conv2d(16, 32, 3, padding=1)).requires_grad_(False))
    x = images(8, 16, 9, 9)
    of = {"weight": layer.weight, "bias": layer.bias, "x": x}[learns].requires_grad_()
    with CountingMode() as noted:
        layer(x).sum().backward()
    counted = {"weight": (1, 1), "bias": (1, 0), "x": (2, 0)}[learns]
    assert (noted.names.count(CONVOLVES), noted.names.count(LEARNS)) == counted
    assert of.grad is not None
    assert sum(each.grad is not None for each in (layer.weight, layer.bias, x)) == 1


def test_few_tiles_of_many_weights_are_left_to_torch_but_for_the_gradient_of_weights() -> None:
    layer, x = (use_fast_kernels(laid_out(nn.Conv2d(272, 256, 3, padding=1))), images(8, 272, 7, 7).requires_grad_())
    with CountingMode() as noted:
        layer(x).sum().backward()
    assert noted.names == [LEARNS]
    with CountingMode() as noted:
        layer(images(2, 272, 3, 3)).sum().backward()
    assert noted.names == []


def other_layout(model: Any, x: Any) -> Any:
    return model.to(memory_format=torch.contiguous_format)(x.contiguous())


def other_numbers(model: Any, x: Any) -> Any:
    return model.double()(x.double())


def shorter(model: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model(x)


@pytest.mark.parametrize("call", [other_layout, other_numbers, shorter])
def test_unsupported_calls_give_the_bits_of_torch(call: Any) -> None:
    plain, x = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Conv2d(32, 16, 5)), images(4, 16, 12, 12)
    own = use_fast_kernels(copy.deepcopy(plain).to(memory_format=torch.channels_last))
    plain.to(memory_format=torch.channels_last)
    with CountingMode() as noted:
        made = call(own, x)
    assert noted.names == []
    assert torch.equal(made, call(plain, x))


def test_second_derivatives_are_torchs() -> None:
    layer = nn.Conv2d(16, 16, 3, padding=1).double()
    x, narrow = (
        images(8, 16, 9, 9).double().requires_grad_(),
        use_fast_kernels(laid_out(copy.deepcopy(layer).float())),
    )

    def twice(of: Any, given: Any) -> list[Any]:
        by = [given, *of.parameters()]
        first = torch.autograd.grad(of(given).pow(3).sum(), by, create_graph=True)
        return list(torch.autograd.grad(sum(each.square().sum() for each in first), by))

    wanted = twice(layer, x)
    got = twice(narrow, x.detach().float().requires_grad_())
    assert all(error(one, other) < 1e-5 for one, other in zip(got, wanted, strict=True))


def test_weights_stay_where_they_are_and_all_can_be_undone() -> None:
    model, x = mixed(), images(6, 3, 17, 13)
    model.eval()
    before, parameters, names = model(x), list(model.parameters()), list(model.state_dict())
    assert use_fast_kernels(model) is model
    # A second call changes nothing.
    assert use_fast_kernels(model) is model
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == names
    assert not torch.equal(model(x), before)
    use_fast_kernels(model, enabled=False)
    assert count_fast_layers(model) == 0
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_uses_fast_kernels_with_separate_weights(copied: Any) -> None:
    model, x = use_fast_kernels(mixed()), images(6, 3, 17, 13)
    other = copied(model)
    assert count_fast_layers(other) == 3
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    assert bool(model(x).abs().sum() > 0)
    assert bool(other(x).abs().sum() == 0)


def test_layers_that_compute_otherwise_are_left_alone() -> None:
    class Doubled(nn.Conv2d):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    layers = [
        Doubled(16, 16, 3),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.Conv2d(16, 16, 3, dilation=2),
        nn.Conv2d(32, 32, 3, groups=2),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(16, 16, 1),
        nn.Conv2d(16, 20, 3),
        nn.LSTM(4, 6, proj_size=3),
        nn.GRU(4, 6),
    ]
    assert [count_fast_layers(use_fast_kernels(layer)) for layer in layers] == [0] * len(layers)


def test_a_model_without_supported_layers_warns(caplog: Any) -> None:
    use_fast_kernels(nn.Linear(3, 3))
    assert "corewise.use_fast_kernels: no layer of this model has a fast kernel" in caplog.text


def test_images_in_another_layout_warn_once(caplog: Any) -> None:
    fast_kernels._warn_about_layout.cache_clear()
    layer, x = use_fast_kernels(nn.Conv2d(16, 16, 3)), images(8, 16, 9, 9)
    layer(x)
    assert caplog.text == ""
    for _ in range(2):
        layer(x.contiguous())
    [message] = caplog.messages
    assert "call .to(memory_format=torch.channels_last) on the model and on each batch" in message


def test_without_the_kernels_it_says_what_is_missing_where_something_is(monkeypatch: Any) -> None:
    def missing() -> None:
        raise NativeBuildError("COREWISE_NATIVE=0 says so")

    monkeypatch.setattr(fast_kernels, "load_native_module", missing)
    with pytest.raises(NativeBuildError, match=r"the C.. module with the kernels is not available: COREWISE_NATIVE=0"):
        use_fast_kernels(mixed())
    assert count_fast_layers(use_fast_kernels(nn.Linear(3, 3))) == 0


def test_anything_but_a_module_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"corewise\.use_fast_kernels takes a torch\.nn\.Module, not list"):
        use_fast_kernels([])  # type: ignore[type-var]


def test_an_image_without_a_batch_is_torchs_and_its_layout_is_not_blamed(caplog: Any) -> None:
    fast_kernels._warn_about_layout.cache_clear()
    layer, x = use_fast_kernels(nn.Conv2d(16, 16, 3)), torch.randn(16, 30, 30)
    assert torch.equal(layer(x), functional.conv2d(x, layer.weight, layer.bias))
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "resnext50_32x4d", "inception_v3", "lstm_ensemble"])
def test_a_model_says_beforehand_whether_it_has_fast_kernels(name: str) -> None:
    """The control side knows it from the description, without torch."""
    workload: Any = find_workload(name)
    layers = workload.build_layers(dict(workload.parameters))
    network = use_fast_kernels(build_network(layers, 1))
    assert count_fast_layers(network) == sum(map(has_own_kernel, walk_layers(layers)))
    assert workload.describe_traits(dict(workload.parameters)).has_fast_kernels == (count_fast_layers(network) > 0)


def test_wrong_channels_raise_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="expected input"):
        use_fast_kernels(laid_out(nn.Conv2d(16, 16, 3)))(images(8, 32, 9, 9))


@pytest.mark.parametrize(
    ("workload", "more", "num_layers"),
    [
        ("resnet18", {"memory_format": "channels_last", "image_size": 64}, 13),
        ("lstm_ensemble", {"time_steps": 20, "hidden": 16, "members": 2, "num_classes": 6}, 4),
    ],
)
def test_a_trial_passes_its_check_and_counts_its_fast_layers(
    params: Params, alone: RankContext, workload: str, more: dict[str, Any], num_layers: int
) -> None:
    runtime = find_runtime("torch")
    point = params(workload=workload, mode="train", execution="fast-kernels", batch=8, **more)
    runtime.warm()
    runtime.warm_for(point)
    job = runtime.prepare(point, alone)
    check = job.check()
    assert check.passed, check
    job.step()
    assert job.read_facts()["num_fast_kernel_layers"] == num_layers
    job.close()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"workload": "resnet18"}, "convolutions need memory_format"),
        ({"workload": "transformer", "layers": 1}, "no fast kernel runs for this module: it has no supported layer"),
        ({"workload": "resnet18", "dtype": "bfloat16"}, "support only float32 on the CPU"),
        ({"workload": "resnet18", "math": "vanilla"}, "all other layers need oneDNN with plain tensors"),
        ({"workload": "resnet18", "float32_precision": "bf16"}, "do not support float32_precision: bf16"),
    ],
)
def test_an_infeasible_trial_has_its_reason(
    params: Params, alone: RankContext, values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Infeasible, match=f"execution fast-kernels[^:]*: .*{reason}"):
        find_runtime("torch").prepare(params(mode="train", execution="fast-kernels", **values), alone)


def test_two_runs_give_the_same_bits() -> None:
    torch.set_num_threads(2)
    model, x = use_fast_kernels(mixed()).eval(), images(12, 3, 33, 29)
    first = gradients(model, x)
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(gradients(model, x), first, strict=True))
