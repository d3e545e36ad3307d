"""What replayed operators would lose is seen before any plan: such models run as they are, untouched."""

import collections
import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from corewise.accelerate.malleable.module_wrapper import Malleable

Make = Callable[..., Malleable]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.one(x), self.two(x)]).sum(0)


class Reversing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Reverses(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(Reversing.apply(self.one(x)))


class Rounds(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(Rounding.apply(self.one(x)))


class Doubles(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient * 2)
        return super().forward(h)


class HooksItsNode(Two):
    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        if h.grad_fn is not None:
            h.grad_fn.register_hook(lambda into, _: tuple(None if g is None else g * 2 for g in into))
        return super().forward(h)


def _gradients(module: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor | None]:
    module.zero_grad()
    call(x).square().sum().backward()
    return [None if one.grad is None else one.grad.clone() for one in module.parameters()]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Reverses(), "it has a custom backward pass (ReversingBackward)"),
        (Rounds(), "it has a custom backward pass (RoundingBackward)"),
        (Doubles(), "its forward hooks gradients (register_hook)"),
        (HooksItsNode(), "its replayed operators give other gradients"),
    ],
    ids=["reversal", "straight-through", "hook", "hook of a node"],
)
def test_a_custom_backward_pass_runs_and_is_explained(planned: Make, model: nn.Module, reason: str) -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        fast = planned(model, x)
        fast(x)
        # Without gradients the plan loses nothing.
        assert fast.timeline()
    for _ in range(2):
        for mine, plain in zip(_gradients(model, fast, x), _gradients(model, model, x), strict=True):
            torch.testing.assert_close(mine, plain)
    assert f"runs unchanged: {reason}" in fast.explain()


@pytest.mark.parametrize("model", [Reverses(), Doubles()], ids=["function", "hook"])
def test_a_custom_backward_pass_is_detected_while_parameters_are_frozen(planned: Make, model: Two) -> None:
    x = torch.randn(3, 4)
    fast = planned(model.requires_grad_(False), x)
    assert not any(one.requires_grad for one in model.parameters())
    model.requires_grad_(True)
    for mine, plain in zip(_gradients(model, fast, x), _gradients(model, model, x), strict=True):
        torch.testing.assert_close(mine, plain)
    assert "runs unchanged" in fast.explain()


def test_planning_runs_no_hook_of_a_parameter_and_leaves_no_gradient(planned: Make) -> None:
    model, x = Two(), torch.randn(3, 4)
    hook_calls: list[int] = []
    model.one.weight.register_hook(lambda _: hook_calls.append(1))
    fast = planned(model, x)
    assert hook_calls == []
    assert model.one.weight.grad is None
    fast(x).sum().backward()
    assert fast.timeline()
    assert hook_calls == [1]


def test_operators_before_the_model_may_have_a_custom_backward_pass(planned: Make) -> None:
    model, x = Two(), torch.randn(3, 4, requires_grad=True)
    fast = planned(model, Reversing.apply(x))
    fast(Reversing.apply(x)).sum().backward()
    assert fast.timeline()
    assert x.grad is not None
    got, x.grad = x.grad, None
    model(Reversing.apply(x)).sum().backward()
    torch.testing.assert_close(got, x.grad)


class Holder:
    def __init__(self) -> None:
        self.seen = 0


class Keeps(Two):
    shared: list[int] = []  # noqa: RUF012

    def __init__(self, keep: Callable[["Keeps", Tensor], object]) -> None:
        super().__init__()
        self.h: list[Any] = []
        self.nested = {"inner": [{1, 2}], "queue": collections.deque([1], maxlen=3)}
        self.holder, self.array = Holder(), np.zeros(3)
        self.own_random = random.Random(1)
        self.numbers = (1, torch.zeros(2))
        self.keep = keep
        self.register_buffer("average", torch.zeros(4))
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.keep(self, y)
        return y + self.average * self.n


def _counts(model: Keeps, y: Tensor) -> None:
    model.n += 1


def _averages(model: Keeps, y: Tensor) -> None:
    model.n += 1
    model.average = 0.9 * model.average + 0.1 * y.detach().mean(0)


def _holds(model: Keeps, y: Tensor) -> None:
    model.holder.seen += 1


def _writes_array(model: Keeps, y: Tensor) -> None:
    model.array[0] += 1


def _held(model: Keeps) -> str:
    return repr((model.h, model.nested, model.holder.seen, model.array, model.n, model.average, model.numbers)) + repr(
        (model.shared, model.own_random.getstate(), random.getstate(), np.random.get_state())
    )


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        (lambda model, y: model.h.append(y), "its forward changes attributes (h)"),
        (lambda model, y: model.nested["inner"][0].add(3), "its forward changes attributes (nested)"),
        (lambda model, y: model.nested["queue"].append(3), "its forward changes attributes (nested)"),
        (lambda model, y: model.nested.update(last=1), "its forward changes attributes (nested)"),
        (lambda model, y: model.shared.append(1), "its forward changes attributes (shared)"),
        (lambda model, y: model.own_random.random(), "its forward changes attributes (own_random)"),
        (lambda model, y: model.numbers[1].add_(1), "it writes to a tensor that is neither"),
        (lambda model, y: random.random(), "its forward draws from Python's random"),
        (lambda model, y: np.random.rand(), "its forward draws from numpy.random"),
        (_holds, "its forward changes attributes (seen)"),
        (_writes_array, "its forward changes attributes (array)"),
        (_counts, "its forward changes attributes (n)"),
        (_averages, ""),
    ],
)
def test_state_that_a_forward_changes_is_detected_and_restored(planned: Make, keep: Any, reason: str) -> None:
    model, x = Keeps(keep), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    before = _held(model)
    with torch.no_grad():
        fast = planned(model, x)
        assert _held(model) == before
        assert f"runs unchanged: {reason}" in fast.explain()
        for _ in range(3):
            assert torch.equal(fast(x), twin(x))
    assert model.n == twin.n
    Keeps.shared.clear()


def test_models_that_hold_containers_and_write_buffers_are_planned(planned: Make) -> None:
    class Holds(Two):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.table: dict[str, Any] = {"a": [1, 2], "rest": (torch.ones(4), Holder())}
            self.shape: Any = torch.Size([3, 4])

        def forward(self, x: Tensor) -> Tensor:
            self.shape = x.shape
            scaled = self.norm(super().forward(x)) * self.table["a"][1] + torch.tensor(2.0)
            return scaled + self.table["rest"][0]

    model, x = Holds().train(), torch.randn(3, 4)
    twin = copy.deepcopy(model)
    fast = planned(model, x)
    for _ in range(2):
        torch.testing.assert_close(fast(x), twin(x))
    assert fast.timeline()
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)
    assert model.norm.num_batches_tracked == 2


def test_custom_operators_run_as_they_are(planned: Make) -> None:
    drawn: list[int] = []

    @torch.library.custom_op("corewise_tests::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        drawn.append(1)
        return x * len(drawn)

    @counted.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    class Custom(Two):
        def forward(self, x: Tensor) -> Tensor:
            return counted(super().forward(x))

    with torch.no_grad():
        fast = planned(Custom(), torch.randn(3, 4))
    assert "custom operator corewise_tests::counted" in fast.explain()
    assert drawn == []


@pytest.mark.parametrize("asked", ["mode", "input"])
def test_models_that_ask_for_inference_mode_run_unchanged(planned: Make, asked: str) -> None:
    class Asks(Two):
        def forward(self, x: Tensor) -> Tensor:
            is_on = torch.is_inference_mode_enabled() if asked == "mode" else x.is_inference()
            return self.one(x) if is_on else self.two(x)

    model = Asks()
    with torch.inference_mode():
        x = torch.randn(3, 4)
        fast = planned(model, x)
        torch.testing.assert_close(fast(x), model(x))
    assert "it behaves differently in inference mode" in fast.explain()


def test_tensors_from_numbers_have_the_default_type_of_the_call(planned: Make) -> None:
    class Thirds(Two):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.tensor([1 / 3])

    model, x = Thirds(), torch.randn(3, 4)
    with torch.no_grad():
        fast = planned(model, x)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            assert fast(x).dtype == model(x).dtype == torch.float64
        finally:
            torch.set_default_dtype(before)
        assert fast(x).dtype == torch.float32
    assert fast.timeline()


def test_random_numbers_in_inference_mode_are_no_difference(planned: Make) -> None:
    model, x = nn.Sequential(Two(), nn.Dropout(0.5)).train(), torch.randn(3, 4)
    with torch.inference_mode():
        fast = planned(model, x)
        torch.manual_seed(5)
        expected = model(x)
        torch.manual_seed(5)
        torch.testing.assert_close(fast(x), expected)
    assert fast.timeline()


@pytest.mark.parametrize("how", ["checkpoint", "save_on_cpu"])
def test_activations_that_are_not_kept_run_as_they_are(planned: Make, how: str) -> None:
    class Sparing(Two):
        def forward(self, x: Tensor) -> Tensor:
            if how == "checkpoint":
                result: Tensor = checkpoint(super().forward, x, use_reentrant=False)
                return result
            with torch.autograd.graph.save_on_cpu():
                return super().forward(x)

    fast = planned(Sparing(), torch.randn(3, 4))
    assert "its forward hooks gradients" in fast.explain()
    with torch.no_grad():
        fast.prepare(torch.randn(3, 4))
        fast(torch.randn(3, 4))
    assert fast.timeline()


def test_a_result_that_lies_otherwise_in_memory_runs_as_it_is(planned: Make) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            return self.attention(x, x, x)

    # Eager torch has a separate fast path for it.
    model, x = Attends().eval(), torch.randn(4, 5, 16)
    with torch.no_grad():
        fast = planned(model, x)
        got, expected = fast(x)[0], model(x)[0]
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got.view(20, 16), expected.view(20, 16))
