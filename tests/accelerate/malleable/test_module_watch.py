"""A module that is changed after it was planned for computes what it would compute itself."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.accelerate.sample_models import Wide
from torch import Tensor, nn

from corewise.accelerate.malleable import module_watch
from corewise.accelerate.malleable import module_wrapper as malleable_module
from corewise.accelerate.malleable.module_watch import ModuleWatch
from corewise.accelerate.malleable.module_wrapper import Malleable

Make = Callable[..., Malleable]


class Held(nn.Module):
    """Reads attributes of all sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.scale, self.mask, self.shifts = 1.0, torch.ones(8), [1.0, {"by": 2.0}]
        self.config = SimpleNamespace(flip=False)
        self.tail = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(self.inner(x))) * self.scale * self.mask + self.shifts[1]["by"]
        return self.tail(-y if self.config.flip else y)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x.flip(0))


def _is_by_plan(fast: Malleable) -> bool:
    return any(entry.is_planned for entry in fast._plans.values())


def _same(fast: Malleable, model: nn.Module, x: Tensor) -> bool:
    twin = copy.deepcopy(model)
    torch.manual_seed(3)
    expected = twin(x)
    torch.manual_seed(3)
    got = fast(x)
    buffers = zip(model.buffers(), twin.buffers(), strict=True)
    # Sums that cancel keep the rounding errors of their largest terms.
    atol = 1e-6 * max(1.0, float(expected.abs().max()))
    return torch.allclose(got, expected, atol=atol) and all(torch.allclose(a, b) for a, b in buffers)


def _stand_in(model: Held) -> None:
    model.tail = nn.Linear(8, 8)


def _own_class(model: Held) -> None:
    class Negative(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    model.tail.__class__ = Negative


CHANGES: dict[str, Callable[[Any], Any]] = {
    "number": lambda m: setattr(m, "scale", 3.0),
    "number of a part": lambda m: setattr(m.drop, "p", 0.0),
    "momentum": lambda m: setattr(m.norm, "momentum", 0.9),
    "tensor": lambda m: setattr(m, "mask", torch.zeros(8)),
    "in a list": lambda m: m.shifts[1].update(by=7.0),
    "of an object": lambda m: setattr(m.config, "flip", True),
    "forward": lambda m: setattr(m.tail, "forward", lambda x: x * 0),
    "class": _own_class,
    "part": _stand_in,
    "parametrised": lambda m: nn.utils.parametrizations.weight_norm(m.tail),
    "type": lambda m: setattr(m.inner.weight, "data", torch.ones(8, 8).double()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changes_of_the_module_are_detected(change: Callable[[Any], Any]) -> None:
    model = Held().train()
    before = ModuleWatch(model)
    change(model)
    assert not before.is_unchanged()
    assert not before.has_only_moved()
    assert not ModuleWatch(model).is_equivalent_to(before)


@pytest.mark.parametrize("name", ["number", "momentum", "parametrised"])
def test_changes_after_planning_take_effect_at_the_next_call(planned: Make, name: str) -> None:
    model, x = Held().train(), torch.randn(16, 8)
    with torch.no_grad():
        fast = planned(model, x)
        assert _is_by_plan(fast)
        model.mask.mul_(5)
        model.inner.weight.data = torch.ones(8, 8)
        [entry] = fast._plans.values()
        assert _same(fast, model, x)
        # Tensors are read at each call.
        assert list(fast._plans.values()) == [entry]
        CHANGES[name](model)
        assert _same(fast, model, x)
    assert _is_by_plan(fast)


def test_attributes_set_to_equal_values_keep_the_plan(planned: Make) -> None:
    model, x = Held().eval(), torch.randn(16, 8)
    model.scale = 1234.5
    with torch.no_grad():
        fast = planned(model, x)
        assert fast._watch.is_unchanged()
        [entry] = fast._plans.values()
        # An equal but different object.
        model.scale = float("1234.5")
        model.shifts = list(model.shifts)
        model.inner.weight = nn.Parameter(torch.randn(8, 8))
        model.tail.weight.data = torch.randn(8, 8)
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
        model.train().eval()
        assert _same(fast, model, x)
        assert list(fast._plans.values()) == [entry]
        assert fast._watch.is_unchanged()


def test_modes_are_no_change_of_what_is_held() -> None:
    model = Held().train()
    before = ModuleWatch(model)
    model.eval()
    assert before.is_unchanged()
    model.__dict__.update(copy.deepcopy(model).__dict__)
    assert not before.is_unchanged()
    assert not ModuleWatch(model).is_equivalent_to(before)


def test_a_module_whose_attributes_change_at_each_call_is_not_planned_for_at_each(planned: Make) -> None:
    model, x = Held().eval(), torch.randn(16, 8)
    num_planned = 0
    with torch.no_grad():
        fast = planned(model, x)
        for call in range(8):
            model.scale = float(call)
            assert _same(fast, model, x)
            num_planned += _is_by_plan(fast)
        assert num_planned <= 3


@pytest.mark.parametrize("how", ["parameter", "assigned"])
def test_weights_that_are_no_longer_tied_have_separate_gradients(planned: Make, how: str) -> None:
    model, x = Tied(), torch.randn(16, 8)
    fast = planned(model, x)
    assert _is_by_plan(fast)
    if how == "parameter":
        model.b.weight = nn.Parameter(torch.randn(8, 8))
    else:
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    twin = copy.deepcopy(model)
    got, expected = fast(x), twin(x)
    assert torch.allclose(got, expected, atol=1e-6)
    got.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-4)


def test_modules_with_unregistered_parameters_run_unchanged(planned: Make) -> None:
    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [nn.Linear(8, 8)]

        def forward(self, x: Tensor) -> Tensor:
            return self.parts[0](x)

    model, x = Hides(), torch.randn(4, 8)
    fast = planned(model, x)
    fast(x).sum().backward()
    assert model.parts[0].weight.grad is not None
    assert "not registered" in fast.explain()


def test_inputs_in_memory_that_is_written_run_as_they_are(planned: Make) -> None:
    class Writes(nn.Module):
        buf: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("buf", torch.randn(8, 8))
            self.lin = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            self.buf.mul_(1.5)
            return y + x @ x

    model = Writes()
    with torch.no_grad():
        fast = planned(model, torch.randn(8, 8))
        [entry] = fast._plans.values()
        assert entry.bound is not None
        assert entry.bound.can_run([torch.randn(8, 8)])
        assert not entry.bound.can_run([model.buf])
        assert not entry.bound.can_run([model.buf.view(64).view(8, 8)])
        twin = copy.deepcopy(model)
        assert torch.equal(fast(model.buf), twin(twin.buf))
        # The tensor has moved.
        model.buf = torch.randn(8, 8)
        assert not entry.bound.can_run([model.buf])


@pytest.mark.parametrize("of", ["result", "input", "parameter"])
def test_results_that_are_views_keep_their_ties_where_gradients_are_wanted(planned: Make, of: str) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.lin(x)
            return y, {"result": y, "input": x, "parameter": self.lin.weight}[of].view(-1)

    model, x = Views(), torch.randn(8, 8)
    fast = planned(model, x)
    assert "shares memory with an input, a parameter or another result" in fast.explain()
    if of == "result":
        y, flat = fast(x)
        y.mul_(3)
        flat.sum().backward()
        assert model.lin.bias.grad is not None
        assert model.lin.bias.grad.tolist() == [24.0] * 8
    with torch.no_grad():
        y, flat = planned(model, x)(x)
        base = {"result": y, "input": x, "parameter": model.lin.weight}[of]
        assert flat.data_ptr() == base.data_ptr()


def test_the_least_recently_used_signature_is_evicted(planned: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malleable_module, "MAX_SIGNATURES", 2)
    model = Wide().eval()
    sizes = {size: torch.randn(size, 16) for size in (2, 3, 4)}
    with torch.no_grad():
        fast = planned(model, sizes[2]).prepare(sizes[3])
        fast(sizes[3])
        for _ in range(malleable_module.CALLS_BEFORE_EVICTION + 1):
            fast(sizes[4])
        shapes = {entry[0] for signature in fast._plans for entry in signature.inputs[1]}
        assert shapes == {(3, 16), (4, 16)}
        # All are equally frequent, so none replaces another.
        for _ in range(8):
            for x in sizes.values():
                fast(x)
        assert {entry[0] for signature in fast._plans for entry in signature.inputs[1]} == shapes


def test_attributes_that_are_set_reach_the_module(planned: Make) -> None:
    model, x = Held().eval(), torch.randn(16, 8)
    with torch.no_grad():
        fast = planned(model, x)
        fast.scale = 3.0
        assert model.scale == 3.0
        assert _same(fast, model, x)
    fast.note = "new"
    del fast.note
    assert not hasattr(model, "note")
    assert set(vars(fast)) == malleable_module._OWN_ATTRIBUTES


def test_the_page_has_the_figures_of_the_code() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "malleable.md"
    text = " ".join(page.read_text().split())
    assert f"{malleable_module.MAX_SIGNATURES} input signatures have a plan" in text
    assert f"comes {malleable_module.CALLS_BEFORE_EVICTION} times while" in text
    assert f"{module_watch.MAX_WATCHED} things at most" in text
    assert f"within {malleable_module.STABLE_CALLS} calls" in text


def test_recurrent_layers_that_rebuild_their_weight_list_stay_planned(planned: Make) -> None:
    model, x = torch.nn.Sequential(torch.nn.LSTM(4, 4), First()).eval(), torch.randn(3, 2, 4)
    doubled = {name: one.detach().double() for name, one in model.named_parameters()}
    with torch.no_grad():
        # The weight lists still hold the old tensors.
        torch.func.functional_call(model, doubled, x.double())
        fast = planned(model, x)
        assert "runs unchanged" not in fast.explain()
        torch.func.functional_call(model, doubled, x.double())
        torch.testing.assert_close(fast(x), model(x))
        assert "runs unchanged" not in fast.explain()


class First(torch.nn.Module):
    def forward(self, both: tuple[torch.Tensor, object]) -> torch.Tensor:
        return both[0]
