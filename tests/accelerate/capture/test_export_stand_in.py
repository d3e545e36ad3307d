"""While a model is captured, other threads may call it, its submodules and any other module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.accelerate.sample_models import Lstms, Wide
from torch import Tensor, nn

from corewise.accelerate.capture.export_stand_in import build_stand_in
from corewise.accelerate.malleable.capture.module_capture import capture
from corewise.accelerate.malleable.module_wrapper import Malleable

Make = Callable[..., Malleable]
# Far longer than any of these tests takes; only a deadlock reaches it.
LONGEST_S = 100


class Meeting:
    """Where the capturing thread waits in the middle of the model until others have called it."""

    def __init__(self) -> None:
        self.captured_by: int | None = None
        self.is_inside, self.may_continue = threading.Event(), threading.Event()

    def pause(self) -> None:
        if threading.get_ident() == self.captured_by and torch.compiler.is_compiling():
            self.is_inside.set()
            assert self.may_continue.wait(LONGEST_S)

    def capture(self, model: nn.Module, x: Tensor) -> Any:
        self.captured_by = threading.get_ident()
        with torch.no_grad():
            return capture(model, (x,), {})


meeting = Meeting()


@pytest.fixture(autouse=True)
def met() -> Iterator[None]:
    global meeting
    meeting = Meeting()
    yield
    meeting.may_continue.set()


class Shared(nn.Module):
    """A submodule used twice, recurrent layers, branches; waits half-way while it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.same, self.lstms, self.wide = self.stem, Lstms(16), Wide()

    def forward(self, x: Tensor) -> Tensor:
        stem = self.same(torch.tanh(self.stem(x)))
        meeting.pause()
        return self.wide(self.lstms(stem[None])[0][:, :16]) + self.same(stem)


class Reaching(Shared):
    """Calls a submodule through a closure that no attribute shows."""

    def __init__(self) -> None:
        super().__init__()
        stem = self.stem
        self.again = lambda x: stem(x)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.again(x))


def test_others_call_the_model_and_its_parts_while_it_is_captured() -> None:
    model, other, x = Shared().eval(), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), torch.randn(5, 16)
    modules = [model, model.wide, model.stem, other]
    weights = list(model.parameters())
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        expected = [one(x) for one in modules]
        capturing = pool.submit(meeting.capture, model, x)
        assert meeting.is_inside.wait(LONGEST_S)
        results = [one(x) for one in modules]
        assert [type(one) for one in results] == [Tensor] * 4
        assert type(model.same) is nn.Linear
        assert all(one is two for one, two in zip(model.parameters(), weights, strict=True))
        meeting.may_continue.set()
        captured = capturing.result(LONGEST_S)
    torch.testing.assert_close(results, expected)
    alone = capture(model, (x,), {})
    # Operators of other threads are not captured.
    assert captured.fingerprint == alone.fingerprint


def test_a_running_call_continues_while_the_model_is_captured() -> None:
    model, x = Shared().eval(), torch.randn(5, 16)
    half_way, resume = threading.Event(), threading.Event()

    def wait_half_way(*_: object) -> None:
        half_way.set()
        assert resume.wait(LONGEST_S)

    with ThreadPoolExecutor(2) as pool:
        expected = model(x)
        hook = model.stem.register_forward_hook(wait_half_way)
        under_way = pool.submit(model, x)
        assert half_way.wait(LONGEST_S)
        hook.remove()
        capturing = pool.submit(meeting.capture, model, x)
        assert meeting.is_inside.wait(LONGEST_S)
        resume.set()
        results = under_way.result(LONGEST_S)
        meeting.may_continue.set()
        capturing.result(LONGEST_S)
    assert type(results) is Tensor
    torch.testing.assert_close(results, expected)
    results.sum().backward()
    assert model.stem.weight.grad is not None


def test_training_during_a_capture_reaches_the_parameters() -> None:
    model, x = Shared().train(), torch.randn(5, 16)
    with ThreadPoolExecutor(1) as pool:
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        capturing = pool.submit(meeting.capture, model, x)
        assert meeting.is_inside.wait(LONGEST_S)
        model(x).square().sum().backward()
        meeting.may_continue.set()
        capturing.result(LONGEST_S)
    torch.testing.assert_close([one.grad for one in model.parameters()], list(expected))


def test_submodules_in_closures_keep_their_live_parameters(planned: Make) -> None:
    model, x = Reaching().eval(), torch.randn(5, 16)
    with torch.no_grad():
        fast = planned(model, x)
        assert fast._plans
        model.stem.weight.mul_(-2.0)
        torch.testing.assert_close(fast(x), model(x))


def test_a_stand_in_shares_tensors_but_not_containers() -> None:
    model = Shared()
    model.parts, model.forward = {"wide": [model.wide, (model.stem, 1)]}, model.forward
    made: Any = build_stand_in(model)
    assert made.stem is made.same is made.parts["wide"][1][0] is not model.stem
    assert made.forward.__self__ is made
    assert made.stem.weight is model.stem.weight
    made.stem._parameters["weight"] = made.lstms.forwards._flat_weights[0] = None
    assert model.stem.weight is not None
    assert model.lstms.forwards._flat_weights[0] is not None


def test_a_model_without_a_stand_in_is_captured_directly() -> None:
    class Slotted(nn.Linear):
        __slots__ = ("extra",)

    model, x = nn.Sequential(Slotted(4, 4), nn.Tanh()), torch.randn(2, 4)
    assert build_stand_in(model) is None
    assert len(capture(model, (x,), {}).program.calls) == 2
