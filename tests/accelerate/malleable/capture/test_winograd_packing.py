"""Winograd convolutions of a plan: the same results, and only where they are faster."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from corewise.accelerate.malleable import planned_module
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram, capture
from corewise.accelerate.malleable.module_wrapper import Malleable
from corewise.accelerate.malleable.plan_facts import collect_plan_facts

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]
Planned = Callable[..., Malleable]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def last(tensor: Any) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last)


def images(num: int = 4, size: int = 17) -> Any:
    return last(torch.randn(num, 16, size, size + 2))


def with_norm(channels: int, results: int, kernel: int, padding: int) -> list[nn.Module]:
    norm = nn.BatchNorm2d(results)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return [nn.Conv2d(channels, results, kernel, padding=padding, bias=False), norm, nn.ReLU()]


def network() -> nn.Module:
    """Two convolutions that our kernel takes, and two that it does not."""
    layers = [*with_norm(16, 32, 3, 1), nn.Conv2d(32, 48, 5, padding=2), nn.ReLU()]
    layers += [nn.Conv2d(48, 32, 3, stride=2), nn.Conv2d(32, 24, 3), nn.Flatten(), nn.LazyLinear(40)]
    model = nn.Sequential(*layers).eval()
    model(images())
    return model.to(memory_format=torch.channels_last)


def captured(model: Any, x: Any, cores: int = 2, own_kernels: bool = True) -> CapturedProgram:
    return capture(model, (x,), {}, cores, packs=True, own_kernels=own_kernels)


def same(fast: Any, model: Any, x: Any) -> None:
    expected = model(x)
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_the_same_numbers_on_fresh_inputs(planned: Planned) -> None:
    model = network()
    fast = planned(model, images(), executor="native")
    for _ in range(3):
        same(fast, model, images())
    assert "2 convolutions of these with our Winograd kernel" in fast.explain()
    assert collect_plan_facts(fast)["num_winograd"] == 2
    assert "winograd_conv2d" in fast.explain()


def test_without_our_kernels_convolutions_stay_with_onednn(planned: Planned) -> None:
    model = network()
    fast = planned(model, images(), executor="native", kernels=False)
    same(fast, model, images())
    facts = collect_plan_facts(fast)
    assert (facts["num_winograd"], facts["num_packed"]) == (0, 5)
    assert "our Winograd kernel" not in fast.explain()


def test_weights_that_change_are_never_missed(planned: Planned) -> None:
    model = network()
    fast = planned(model, images(), executor="native")
    for tensor in (model[0].weight, model[1].running_var, model[3].weight, model[3].bias):
        tensor.data.mul_(1.5)
        # Plain execution, then packing again, then packed weights.
        for _ in range(3):
            same(fast, model, images())
        held = fast._last_plan.bound._packs
        assert held._packed_contents == held._last_contents, "made of what there is now"


def test_winograd_convolutions_run_in_slices(planned: Planned) -> None:
    model = network()
    cut = captured(model, images()).in_slices
    assert cut is not None
    names = [call.name for call in cut.program.calls if "winograd" in str(call.target)]
    assert len(names) == 4, "two convolutions, each of two slices"
    assert cut.program.num_winograd == 2, "slices share their weights"
    fast = planned(model, images(), executor="native", run="best", planning_s=0.5)
    for _ in range(3):
        same(fast, model, images())


def test_slices_read_large_weights_for_few_tiles_together() -> None:
    """Weights at the points leave a core's cache, and a slice would use each of them four times only."""
    wide = nn.Sequential(nn.Conv2d(512, 512, 3, padding=1)).to(memory_format=torch.channels_last)
    x = last(torch.randn(16, 512, 7, 7))
    whole = captured(wide, x, cores=16)
    assert whole.program.num_winograd == 1
    assert whole.in_slices is None


@pytest.mark.parametrize(
    ("channels", "size", "num", "cores", "is_ours"),
    [
        # This image has 16 tiles.
        (64, 13, 1, 16, True),
        # This image has 9 tiles.
        (64, 12, 1, 16, False),
        (272, 13, 1, 2, True),
        # Weights that do not fit the cache need more tiles if many threads share the work.
        (272, 13, 1, 16, False),
        (272, 13, 2, 16, True),
    ],
)
def test_layers_with_few_tiles_stay_with_onednn(channels: int, size: int, num: int, cores: int, is_ours: bool) -> None:
    layer = nn.Conv2d(channels, 256, 3, padding=1).to(memory_format=torch.channels_last)
    x = last(torch.randn(num, channels, size, size))
    program = captured(nn.Sequential(layer), x, cores).program
    assert (len(program.packs), program.num_winograd) == (1, int(is_ours))


def test_shared_layers_are_packed_for_each_algorithm(planned: Planned) -> None:
    """The same weights on a large image, on our kernel, and on a small one, on oneDNN's."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(32, 32, 3, padding=1)
            self.pool = nn.MaxPool2d(4)

        def forward(self, x: Any) -> Any:
            one = self.layer(x)
            return self.layer(self.pool(one)).sum((2, 3)) + self.layer(one).sum((2, 3))

    model = Twice().eval().to(memory_format=torch.channels_last)
    x = last(torch.randn(1, 32, 16, 18))
    program = captured(model, x).program
    names = [call.name for call in program.calls if "conv2d" in call.name]
    assert names == ["winograd_conv2d", "packed_conv2d_1", "winograd_conv2d_2"]
    assert (len(program.packs), program.num_winograd) == (2, 1)
    fast = planned(model, x, executor="native")
    same(fast, model, torch.randn_like(x))


def test_what_is_not_finite_stays_in_its_tiles(planned: Planned) -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1)).to(memory_format=torch.channels_last)
    fast = planned(model, images(), executor="native", run="planned")
    x = images()
    x[0, 3, 8, 8], x[1, 3, 0, 0] = float("nan"), float("inf")
    expected, got = model(x), fast(x)
    assert bool((~got.isfinite())[~expected.isfinite()].all()), "none is lost"
    near = torch.zeros_like(got, dtype=torch.bool)
    # These tiles of 4 x 4 results read the value.
    near[0, :, 4:12, 4:12] = near[1, :, :4, :4] = True
    torch.testing.assert_close(got[~near], expected[~near], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(10))
def test_random_networks(planned: Planned, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    channels, size, layers = 16, chance.choice([9, 14, 23]), list[nn.Module]()
    for _ in range(3):
        kernel, wider = chance.choice([1, 3, 5]), chance.choice([16, 32, 48, 80])
        padding = chance.choice([kernel // 2, kernel // 2, kernel - 1])
        if chance.random() < 0.5:
            layers += with_norm(channels, wider, kernel, padding)
        else:
            layers.append(nn.Conv2d(channels, wider, kernel, padding=padding, bias=chance.random() < 0.5))
        layers.append(chance.choice([nn.ReLU(), nn.ReLU(inplace=True), nn.SiLU(), nn.Identity()]))
        channels = wider
    model = nn.Sequential(*layers).eval().to(memory_format=torch.channels_last)
    x = images(chance.choice([1, 2, 5, 8]), size)
    fast = planned(model, x, executor="native", run=chance.choice(["planned", "best"]))
    for _ in range(2):
        same(fast, model, last(torch.randn_like(x)))


def test_large_numbers_lose_no_packed_weights(planned: Planned) -> None:
    """Errors are those of the largest results, which small ones among them have too."""
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    x = last(255 * torch.rand(4, 3, 32, 32))
    fast = planned(model, x, executor="native")
    assert collect_plan_facts(fast)["num_winograd"] == 2
    same(fast, model, last(255 * torch.rand(4, 3, 32, 32)))


def test_where_winograd_is_too_inexact_weights_stay_packed(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(case: Any, expected: Any) -> bool:
        return not case.program.num_winograd and plainly(case, expected)

    plainly = planned_module._is_equivalent
    monkeypatch.setattr(planned_module, "_is_equivalent", refused)
    model = network()
    fast = planned(model, images(), executor="native")
    facts = collect_plan_facts(fast)
    assert (facts["num_winograd"], facts["num_packed"]) == (0, 5)
    same(fast, model, images())
