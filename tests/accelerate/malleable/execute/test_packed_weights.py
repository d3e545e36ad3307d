"""Prepacked weights: the same results, whatever happens to the weights."""

import copy
import gc
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

from corewise.accelerate.capture import weight_packing
from corewise.accelerate.kernels.build import load_native_module
from corewise.accelerate.malleable import module_wrapper as malleable_file
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram, capture
from corewise.accelerate.malleable.execute import packed_weights
from corewise.accelerate.malleable.module_wrapper import Malleable
from corewise.accelerate.malleable.plan import planner
from corewise.accelerate.malleable.plan_facts import collect_plan_facts

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("native")]


@pytest.fixture(autouse=True)
def _without_gradients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    # Independent of the processor.
    monkeypatch.setattr(weight_packing, "_has_fast_mkl", lambda: False)
    with torch.no_grad():
        yield


class Small(nn.Module):
    """Convolutions with and without norms and biases, a branch, and linear layers."""

    def __init__(self, groups: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.left = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, groups=groups), nn.BatchNorm2d(32))
        self.right = nn.Conv2d(16, 32, (3, 5), stride=1, padding=(1, 2), bias=False)
        self.bare = nn.Sequential(nn.Conv2d(64, 64, 1), nn.BatchNorm2d(64, affine=False))
        self.first, self.last = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
        for one in self.modules():
            if isinstance(one, nn.BatchNorm2d):
                one.running_mean.normal_()
                one.running_var.uniform_(0.5, 2.0)
                if one.affine:
                    one.weight.data.normal_()
                    one.bias.data.normal_()

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = self.bare(torch.cat([self.left(x), self.right(x)], 1))
        return self.last(torch.relu(self.first(x.mean((2, 3)))))


def small(**options: Any) -> tuple[nn.Module, Any]:
    model = Small(**options).eval().to(memory_format=torch.channels_last)
    return model, images(6)


def images(num: int) -> Any:
    return torch.randn(num, 3, 9, 11).contiguous(memory_format=torch.channels_last)


def num_packs(fast: Malleable) -> int:
    assert fast._last_plan is not None
    assert fast._last_plan.bound is not None, fast._last_plan.reason
    return len(fast._last_plan.bound.program.packs)


Planned = Callable[..., Malleable]


def same(fast: Any, model: Any, x: Any, **options: Any) -> None:
    expected = model(x)
    largest = float(expected.nan_to_num(0, 0, 0).abs().max())
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5 * max(1.0, largest), **options)


@pytest.mark.parametrize("groups", [1, 4])
def test_same_numbers_on_fresh_inputs(planned: Planned, groups: int) -> None:
    model, x = small(groups=groups)
    fast = planned(model, x, executor="native")
    assert num_packs(fast) == 6
    for _ in range(5):
        same(fast, model, images(6))
    assert "6 layers with prepacked weights" in fast.explain()
    facts = collect_plan_facts(fast)
    assert facts["num_packed"] == 6
    operators = {"packed_conv2d", "winograd_conv2d", "packed_linear", "cat", "relu", "relu_", "mean"}
    assert {task["kind"] for task in facts["tasks"]} <= operators


@pytest.mark.parametrize(
    "change",
    [
        # Torch does not count this write.
        lambda w: w.data.mul_(1.5),
        # The same values in another order.
        lambda w: w.data.copy_(w.flip(0)),
        # A single element.
        lambda w: w.data[(-1,) * w.dim()].sub_(1.0),
        lambda w: w.add_(0.25),
        lambda w: setattr(w, "data", torch.randn_like(w)),
        # A write that bypasses torch.
        lambda w: w.data.numpy().fill(0.125),
    ],
)
def test_changed_weights_are_never_missed(planned: Planned, change: Callable[[Any], Any]) -> None:
    model, x = small()
    fast = planned(model, x, executor="native")
    norm = model.left[1]
    tensors = [model.stem[0].weight, model.left[0].bias, norm.weight, norm.running_var, model.first.weight]
    for tensor in tensors:
        change(tensor)
        for buffer in model.buffers():
            buffer.abs_()
        # Plain execution, then packing again, then packed weights.
        for _ in range(3):
            same(fast, model, images(6))
        held = fast._last_plan.bound._packs
        assert held._packed_contents == held._last_contents, "made of what there is now"


def test_weights_that_change_in_every_call_are_not_packed_in_every_call(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = small()
    fast = planned(model, x, executor="native")
    made: list[Any] = []
    plain = packed_weights.pack_weights
    monkeypatch.setattr(packed_weights, "pack_weights", lambda *given: made.append(given[0]) or plain(*given))
    for _ in range(5):
        model.first.weight.data.mul_(1.1)
        same(fast, model, images(6))
    assert not made
    same(fast, model, images(6))
    assert len(made) == 1, "only the layer that has changed"
    same(fast, model, images(6))
    assert len(made) == 1


def test_nan_and_infinity_are_propagated(planned: Planned) -> None:
    model, x = small()
    fast = planned(model, x, executor="native")
    x = images(6)
    x[0, 0, 4, 4], x[1, 1, 2, 2] = float("nan"), float("inf")
    assert model(x)[:2].isnan().all()
    same(fast, model, x, equal_nan=True)
    for _ in range(3):
        model.left[1].running_var.fill_(float("nan"))
        same(fast, model, images(6), equal_nan=True)


def test_a_norm_that_divides_by_zero_is_not_folded(planned: Planned) -> None:
    model, x = small()
    model.left[1].eps = 0.0
    model.left[1].running_var.zero_()
    fast = planned(model, x, executor="native")
    assert not fast._last_plan.has_packs
    same(fast, model, x, equal_nan=True)


def captured(model: Any, x: Any, cores: int = 2) -> CapturedProgram:
    return capture(model, (x,), {}, cores, packs=True)


def test_unsupported_layers_are_not_packed() -> None:
    model, x = small()
    assert len(captured(model, x).program.packs) == 6
    # Channels come first; oneDNN would put them last.
    plain = Small().eval()
    assert len(captured(plain, torch.randn(6, 3, 9, 11)).program.packs) == 2, "the linear layers only"
    assert not captured(Small().double().eval(), images(6).double()).program.packs
    one_row = nn.Sequential(nn.Linear(64, 96)).eval()
    assert not captured(one_row, torch.randn(1, 64)).program.packs
    assert not captured(nn.Linear(4, 4), torch.randn(8, 4)).program.packs, "too few weights"
    model.train()
    assert all(pack.sources[4] is None for pack in captured(model, x).program.packs), "norms of batches"


@pytest.mark.parametrize(
    ("rows", "features", "num"), [(15, 1024, 0), (16, 1024, 1), (16, 512, 0), (32, 512, 1), (128, 64, 0)]
)
def test_few_rows_are_left_to_mkl_where_that_is_quick(
    monkeypatch: pytest.MonkeyPatch, rows: int, features: int, num: int
) -> None:
    model = nn.Sequential(nn.Linear(features, 1024))
    monkeypatch.setattr(weight_packing, "_has_fast_mkl", lambda: True)
    assert len(captured(model, torch.randn(rows, features)).program.packs) == num
    monkeypatch.setattr(weight_packing, "_has_fast_mkl", lambda: False)
    assert len(captured(model, torch.randn(rows, features)).program.packs) == 1


def test_weights_that_operators_make_are_not_packed() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(96, 64)), nn.Parameter(torch.randn(96))

        def forward(self, x: Any) -> Any:
            return nn.functional.linear(x, self.weight * 2.0, self.bias)

    assert not captured(Scaled(), torch.randn(8, 64)).program.packs


def test_a_norm_after_a_shared_convolution_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)

        def forward(self, x: Any) -> Any:
            x = self.conv(x)
            return self.norm(x) + x

    model = Twice().eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    [pack] = captured(model, x).program.packs
    assert pack.sources[2:] == (None,) * 4


def test_shared_layers_are_packed_once(planned: Planned) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            return self.layer(torch.relu(self.layer(x))) + self.layer(x)

    model, x = Shared(), torch.randn(8, 64)
    fast = planned(model, x, executor="native")
    assert num_packs(fast) == 1
    same(fast, model, x)


@pytest.mark.parametrize("mode", ["gradients", "autocast", "python", "asked", "precision"])
def test_modes_without_packing(planned: Planned, mode: str) -> None:
    model, x = small()
    options: dict[str, Any] = {"executor": "native"}
    if mode == "gradients":
        with torch.enable_grad():
            fast = planned(model, x, **options)
    elif mode == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fast = planned(model, x, **options)
    elif mode == "precision":
        torch.set_float32_matmul_precision("medium")
        try:
            fast = planned(model, x, **options)
        finally:
            torch.set_float32_matmul_precision("highest")
    else:
        options = {"executor": "python"} if mode == "python" else {**options, "pack": False}
        fast = planned(model, x, **options)
    assert not fast._last_plan.has_packs
    same(fast, model, x)


def test_weights_are_packed_for_the_size_of_slices(planned: Planned) -> None:
    model, x = small()
    whole = captured(model, x)
    cut = whole.in_slices
    assert cut is not None
    assert [pack.input_size[0] for pack in whole.program.packs] == [6] * 6
    assert [pack.input_size[0] for pack in cut.program.packs] == [3] * 6, "packed for the slices"
    fast = planned(model, x, executor="native", run="best", planning_s=0.5)
    for _ in range(3):
        same(fast, model, images(6))


def test_the_number_of_signatures_with_packed_weights_is_limited(planned: Planned) -> None:
    model, _ = small()
    fast = planned(model, None, executor="native")
    for num in (4, 5, 6, 7):
        fast.prepare(images(num))
        same(fast, model, images(num))
    held = [entry.has_packs for entry in fast._plans.values()]
    assert held == [True] * malleable_file.MAX_PACKED_SIGNATURES + [False] * 2


def test_packed_weights_are_freed(planned: Planned) -> None:
    model, x = small()
    fast = planned(model, x, executor="native")
    held = fast._last_plan.bound._packs
    assert held is not None
    gone = weakref.ref(held)
    del held
    fast.close()
    fast._plans.clear()
    fast._last_plan = None
    gc.collect()
    assert gone() is None


def test_inference_mode_and_plain_calls_in_turns(planned: Planned) -> None:
    model, x = small()
    fast = planned(model, x, executor="native")
    for _ in range(2):
        with torch.inference_mode():
            model.last.weight.data.mul_(1.5)
            for _ in range(3):
                same(fast, model, images(6))
        same(fast, model, images(6))


@pytest.mark.parametrize("seed", range(12))
def test_random_geometries(planned: Planned, seed: int) -> None:
    chance = random.Random(seed)
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    channels = 8
    for _ in range(3):
        groups, wider = chance.choice([1, 2, 4]), channels * chance.choice([1, 2, 3])
        kernel = (chance.choice([1, 2, 3]), chance.choice([1, 3]))
        geometry = {name: chance.choice([1, 2]) for name in ("stride", "dilation")}
        padding = (chance.choice([1, 2]), chance.choice([1, 2]))
        bias = chance.random() < 0.5
        layers.append(nn.Conv2d(channels, wider, kernel, padding=padding, groups=groups, bias=bias, **geometry))
        if chance.random() < 0.7:
            layers.append(nn.BatchNorm2d(wider, eps=chance.choice([1e-5, 1e-2]), affine=chance.random() < 0.7))
            layers[-1].running_mean.normal_()
            layers[-1].running_var.uniform_(0.2, 3.0)
        layers.append(chance.choice([nn.ReLU(), nn.ReLU(inplace=True), nn.SiLU(), nn.Identity()]))
        channels = wider
    x = torch.randn(chance.choice([1, 2, 5]), 8, 19, 21).contiguous(memory_format=torch.channels_last)
    convolutions = nn.Sequential(*layers).eval()
    num_left = convolutions(x).flatten(2).shape[2]
    model = nn.Sequential(convolutions, nn.Flatten(2), nn.Linear(num_left, 80))
    model.eval().to(memory_format=torch.channels_last)
    fast = planned(model, x, executor="native")
    num_norms = sum(isinstance(one, nn.BatchNorm2d) for one in layers)
    assert num_packs(fast) >= num_norms, "each is folded"
    same(fast, model, torch.randn_like(x))


def test_a_checksum_depends_on_every_byte_and_its_position() -> None:
    contents = load_native_module().contents
    seen: set[int] = set()
    for size in (0, 1, 15, 16, 17, 1000, 16384, 16385, 70001):
        x = torch.zeros(size)
        numbers = [contents([x])]
        for place in {0, size // 2, size - 1} & set(range(size)):
            for value in (1.0, -0.0, 1e-45):
                y = x.clone()
                y[place] = value
                numbers.append(contents([y]))
        hashes = [number for [number] in numbers]
        assert len(set(hashes)) == len(hashes)
        assert not seen & set(hashes)
        seen |= set(hashes)
    x = torch.randn(64, 1024)
    for one, other in itertools.combinations((0, 1, 15, 16, 17, 32, 63), 2):
        y = x.clone()
        y[[one, other]] = x[[other, one]]
        assert contents([y]) != contents([x])
    assert contents([x.clone(), x]) == contents([x]) * 2
    assert contents([x.t()]) != contents([x]), "other strides"
    assert contents([x[:, ::2]]) is None, "gaps"
    assert contents([x.to("meta")]) is None


def test_a_checksum_does_not_depend_on_threads() -> None:
    contents, before = load_native_module().contents, torch.get_num_threads()
    tensors = [torch.randn(2_000_003), torch.randn(5)]
    try:
        hashes = []
        for num in (1, 2, 3):
            torch.set_num_threads(num)
            hashes.append(contents(tensors))
    finally:
        torch.set_num_threads(before)
    assert hashes[0] == hashes[1] == hashes[2]


class Own(nn.Module):
    """A custom forward with these submodules."""

    def __init__(self, own: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.own = own
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *given: Any) -> Any:
        return self.own(self, *given)


def test_planning_leaves_the_generator_alone(planned: Planned) -> None:
    model = nn.Sequential(nn.Linear(64, 96), nn.Dropout(), nn.Linear(96, 64)).train()
    before = torch.get_rng_state()
    fast = planned(model, torch.randn(8, 64, generator=torch.Generator()), executor="native")
    assert fast._last_plan.has_packs
    assert torch.equal(torch.get_rng_state(), before)


def test_statistics_that_a_call_writes_are_not_folded(planned: Planned) -> None:
    def own(self: Any, x: Any) -> Any:
        batch = nn.functional.batch_norm(self.first(x), self.mean, self.variance, training=True)
        return batch + nn.functional.batch_norm(self.second(x), self.mean, self.variance)

    convolutions = {"first": nn.Conv2d(3, 32, 3), "second": nn.Conv2d(3, 32, 3)}
    model = Own(own, **convolutions, mean=torch.randn(32), variance=torch.rand(32) + 0.5)
    model.eval().to(memory_format=torch.channels_last)
    twin, mean = copy.deepcopy(model), model.mean.clone()
    fast = planned(model, images(6), executor="native")
    assert torch.equal(model.mean, mean), "planning has put it back"
    for _ in range(3):
        same(fast, twin, images(6))
        torch.testing.assert_close(model.mean, twin.mean)


def test_what_a_call_writes_through_another_name_is_not_packed(planned: Planned) -> None:
    def own(self: Any, x: Any) -> Any:
        nn.functional.dropout(self.weight, 0.5, training=False).mul_(1.5)
        return nn.functional.linear(x, self.weight)

    model, x = Own(own, weight=torch.randn(96, 64)), torch.randn(8, 64)
    twin = copy.deepcopy(model)
    fast = planned(model, x, executor="native")
    assert not fast._last_plan.has_packs
    for _ in range(3):
        same(fast, twin, x)


def test_what_is_only_read_by_an_operator_that_writes_does_not_stop_packing() -> None:
    def own(self: Any, x: Any) -> Any:
        return self.last(self.first(x).add_(self.places))

    model = Own(own, first=nn.Linear(64, 96), last=nn.Linear(96, 64), places=torch.randn(96))
    assert len(captured(model, torch.randn(8, 64)).program.packs) == 2


def test_weights_that_the_caller_brings_are_not_packed() -> None:
    model = Own(lambda self, x, weight: nn.functional.linear(x, weight))
    assert not capture(model, (torch.randn(8, 64), torch.randn(96, 64)), {}, 2, packs=True).program.packs


def test_weights_that_would_overflow_are_not_folded(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, bias=False), nn.BatchNorm2d(32))
    model.eval().to(memory_format=torch.channels_last)
    x = images(6) * 1e-36
    fast = planned(model, x, executor="native")
    assert fast._last_plan.has_packs
    model[0].weight.mul_(1e36)
    model[1].weight.mul_(1e6)
    assert model(x).isfinite().all()
    tried: list[Any] = []
    plain = packed_weights.pack_weights
    monkeypatch.setattr(packed_weights, "pack_weights", lambda *given: tried.append(given[0]) or plain(*given))
    for _ in range(5):
        same(fast, model, x)
    assert len(tried) == 1, "in vain, and not again"


def test_layers_that_cannot_be_packed_later_run_plainly(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(64, 96)), torch.randn(8, 64)
    fast = planned(model, x, executor="native")

    def without_memory(*given: Any) -> Any:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(packed_weights, "pack_weights", without_memory)
    model[0].weight.mul_(2.0)
    for _ in range(3):
        same(fast, model, x)
    assert fast._last_plan.bound._packs._refused_contents


def test_weights_written_while_they_are_packed_are_not_taken_for_those_before(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Sequential(nn.Linear(64, 96)), torch.randn(8, 64)
    fast = planned(model, x, executor="native")
    plain, weight = packed_weights.pack_weights, model[0].weight

    def meanwhile(*given: Any) -> Any:
        # Stands for a write of another thread.
        weight.data.neg_()
        return plain(*given)

    weight.data.mul_(2.0)
    now = weight.clone()
    monkeypatch.setattr(packed_weights, "pack_weights", meanwhile)
    fast(x)
    fast(x)
    monkeypatch.setattr(packed_weights, "pack_weights", plain)
    weight.data.copy_(now)
    for _ in range(3):
        same(fast, model, x)


def test_weights_in_turns_are_not_packed_in_turns(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(64, 96)), torch.randn(8, 64)
    fast = planned(model, x, executor="native")
    made: list[Any] = []
    plain = packed_weights.pack_weights
    monkeypatch.setattr(packed_weights, "pack_weights", lambda *given: made.append(given[0]) or plain(*given))
    for _ in range(6):
        model[0].weight.data.neg_()
        same(fast, model, x)
    assert not made


def test_weights_that_change_in_every_call_are_soon_checked_less_often(planned: Planned) -> None:
    model, x = nn.Sequential(nn.Linear(64, 96)), torch.randn(8, 64)
    fast = planned(model, x, executor="native")
    held = fast._last_plan.bound._packs
    looks: list[Any] = []
    plain = held._contents
    held._contents = lambda tensors: looks.append(tensors) or plain(tensors)
    for _ in range(1000):
        model[0].weight.data.mul_(1.001)
        fast(x)
    assert len(looks) < 50
    for _ in range(200):
        same(fast, model, x)
    del looks[:]
    fast(x)
    fast(x)
    assert len(looks) == 2, "steady again: every call looks, and packed weights run"
    assert held._packed_contents != [None]


def test_no_packed_weights_are_held_where_plain_execution_runs(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "choose_fastest", lambda times, plain: plain)
    model, x = small()
    fast = planned(model, x, executor="native", run="best")
    assert not fast._last_plan.is_planned
    assert not fast._last_plan.has_packs
    assert num_packs(fast) == 6
    assert fast._last_plan.bound._packs._tensors == [None] * 6
