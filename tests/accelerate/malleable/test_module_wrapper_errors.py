"""A model that cannot be planned runs unchanged, with the reason; errors are those of plain PyTorch."""

import copy
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable

import pytest
import torch
from tests.accelerate.sample_models import Wide
from torch import Tensor, nn

from corewise.accelerate.malleable import idle_threads
from corewise.accelerate.malleable.marked_branches import close_parallel, parallel
from corewise.accelerate.malleable.module_wrapper import Malleable, malleable

Make = Callable[..., Malleable]


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


class Loops(nn.Module):
    def forward(self, x: Tensor) -> list[float]:
        return x.tolist()


class Counts(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


class Detaches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = x * 2
        return x + fixed


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (DataDependent(), "torch.export fails"),
        (Loops(), "item depends on the data"),
        (Counts(), "its forward changes attributes (calls)"),
        (Detaches(), "it contains a nested graph"),
    ],
    ids=["branch", "list", "attribute", "context"],
)
def test_a_model_that_cannot_be_captured_runs_unchanged_with_the_reason(
    planned: Make, model: nn.Module, reason: str
) -> None:
    fast = planned(model, torch.ones(3))
    for x in (torch.ones(3), -torch.ones(3)):
        got, expected = fast(x), model(x)
        assert torch.equal(got, expected) if isinstance(got, Tensor) else got == expected
    assert f"runs unchanged: {reason}" in fast.explain()
    assert fast.timeline() == []


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [((torch.ones(0, 16),), "an input is empty"), ((torch.ones(2, 5),), "torch.export fails")],
    ids=["empty", "misfit"],
)
def test_inputs_that_cannot_be_planned_for_have_a_reason(
    planned: Make, inputs: tuple[Tensor, ...], reason: str
) -> None:
    fast = planned(Wide(), inputs)
    assert reason in fast.explain()


def test_a_model_on_another_device_passes_through_with_a_note(
    planned: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_threads, "_logged", {})
    # Stands for any device other than the CPU.
    model = Wide().to("meta")
    with caplog.at_level(logging.WARNING):
        fast = planned(model, torch.ones(2, 16, device="meta"))
    assert "the model is on meta" in caplog.text
    assert fast(torch.ones(2, 16, device="meta")).shape == (2, 16)
    assert "the model is on meta" in fast.explain()


def test_inputs_that_are_not_tensors_run_unchanged(planned: Make) -> None:
    class Takes(nn.Module):
        def forward(self, x: Tensor, how: object) -> Tensor:
            return x + len(str(how))

    fast = planned(Takes())
    for _ in range(3):
        assert torch.equal(fast(torch.ones(2), {1, 2}), Takes()(torch.ones(2), {1, 2}))


def test_only_modules_are_taken() -> None:
    with pytest.raises(TypeError, match="for functions use parallel"):
        malleable(len)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'native', 'python'"):
        malleable(Wide(), executor="fortran")
    with pytest.raises(ValueError, match="run='fast'"):
        malleable(Wide(), run="fast")


def test_hooks_are_called(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    fast = planned(model, x)
    calls: list[str] = []
    handle = model.stem.register_forward_hook(lambda *_: calls.append("stem"))
    fast(x)
    assert calls == ["stem"]
    assert "hooks are registered" in fast.explain()
    handle.remove()
    fast(x)
    assert calls == ["stem"]


class Looks(nn.Module):
    """Raises in one of its branches for some inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.other = nn.Embedding(100, 4)

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.table(x), self.other(x).tanh(), self.other(x + 1).tanh().tanh()]
        return torch.stack(branches).sum(0)


def test_an_operator_that_raises_in_a_branch_raises_as_in_plain_and_leaves_all_usable(planned: Make) -> None:
    model = Looks()
    good, bad = torch.arange(6), torch.arange(6) + 5
    fast = planned(model, good)
    with pytest.raises(IndexError) as plain:
        model(bad)
    for _ in range(3):
        with pytest.raises(IndexError) as mine:
            fast(bad)
        assert str(mine.value) == str(plain.value)
        torch.testing.assert_close(fast(good), model(good))
        assert fast.timeline()


def test_memory_that_runs_out_in_a_branch_raises_as_in_plain(planned: Make) -> None:
    class Grows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.expand(2**20, 2**20, 2**10).contiguous().sum() + x.tanh().sum()

    fast = planned(Grows(), torch.ones(1))
    with pytest.raises(RuntimeError, match="allocate"):
        fast(torch.ones(1))


def test_an_interrupt_ends_the_call_and_leaves_all_usable() -> None:
    runs, sent = threading.Event(), threading.Event()

    def slow() -> Tensor:
        x = torch.randn(300, 300)
        runs.set()
        while not sent.is_set():
            x = (x @ x) / 300
        # The signal reaches the caller during it.
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            x = (x @ x) / 300
        return x

    def interrupt() -> None:
        runs.wait()
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        parallel(slow, slow)
    sender.join()
    assert parallel(lambda: 1, lambda: 2) == (1, 2)
    close_parallel()


def test_several_callers_get_their_own_results(planned: Make) -> None:
    model = Wide().eval()
    inputs = [torch.randn(8, 16) for _ in range(4)]
    with torch.no_grad():
        fast = planned(model, inputs[0])
        expected = [model(x) for x in inputs]
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.no_grad():
            for _ in range(30):
                if not torch.allclose(fast(inputs[number]), expected[number], atol=1e-6):
                    wrong.append(number)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_a_call_waits_while_another_thread_captures(planned: Make) -> None:
    quick, x = Wide().eval(), torch.randn(4, 16)
    results: list[Tensor] = []
    meanwhile: list[int] = []
    fast, expected = planned(quick, x), quick(x)

    class Starts(Wide):
        def forward(self, x: Tensor) -> Tensor:
            if torch.compiler.is_compiling() and not other.ident:
                other.start()
                time.sleep(0.5)
                meanwhile.append(len(results))
            return super().forward(x)

    other = threading.Thread(target=lambda: results.append(fast(x)))
    with torch.no_grad():
        assert planned(Starts().eval(), torch.randn(4, 16)).explain()
    other.join(60)
    assert meanwhile == [0]
    torch.testing.assert_close(results, [expected])


def test_a_module_is_not_captured_while_another_thread_runs_it(planned: Make) -> None:
    entered, may_end = threading.Event(), threading.Event()
    seen: list[type] = []

    class Slow(Wide):
        def forward(self, x: Tensor) -> Tensor:
            if threading.current_thread() is other:
                entered.set()
                may_end.wait(100)
            elif other.is_alive() and not may_end.is_set():
                seen.append(type(self.stem.weight))
            return super().forward(x)

    fast = planned(Slow().eval())
    other = threading.Thread(target=lambda: fast(torch.randn(0, 16)))
    other.start()
    assert entered.wait(100)
    with torch.no_grad():
        fast(torch.randn(4, 16))
        # It would be planned for, since it was seen before.
        fast(torch.randn(4, 16))
    assert seen == [nn.Parameter] * 2
    may_end.set()
    other.join()
    with torch.no_grad():
        fast(torch.randn(4, 16))
        fast(torch.randn(4, 16))
    assert fast.timeline()


def test_a_copy_and_a_pickle_plan_for_themselves(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    fast = planned(model, x)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert other.module is not model
        torch.testing.assert_close(other(x), model(x))
        other.close()


def test_the_modules_attributes_are_reachable(planned: Make) -> None:
    model = Wide()
    fast = planned(model)
    assert list(fast.parameters()) == list(model.parameters())
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert fast.eval() is fast
    assert not model.training
    assert fast.train().training
    with pytest.raises(AttributeError):
        _ = fast.nothing_of_this_name


def test_a_closed_model_runs_the_module(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    with planned(model, x) as fast:
        fast(x)
    assert torch.equal(fast(x), model(x))
    assert "it is closed" in fast.explain()


def test_transforms_see_the_modules_own_operators(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    with torch.no_grad():
        fast = planned(model, x)
        torch.testing.assert_close(torch.func.vmap(fast)(x), model(x))


def test_branches_marked_by_hand_run_together_and_raise_in_order() -> None:
    with torch.no_grad():
        assert parallel(torch.is_grad_enabled, torch.is_grad_enabled, lambda: 3) == (False, False, 3)
    names = set(parallel(*[_thread_name] * 6))
    assert names <= {thread.name for thread in threading.enumerate()}
    assert parallel(lambda: parallel(lambda: 1, lambda: 2), lambda: 3) == ((1, 2), 3)
    with pytest.raises(ZeroDivisionError):
        parallel(lambda: 1 / 0, lambda: 2)
    assert parallel() == ()
    close_parallel()


def _thread_name() -> str:
    time.sleep(0.01)
    return threading.current_thread().name


def test_branches_marked_by_hand_can_be_captured(planned: Make) -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat(parallel(lambda: self.one(x), lambda: self.two(x)))

    model, x = Marked(), torch.randn(2, 4)
    fast = planned(model, x)
    torch.testing.assert_close(fast(x), model(x))
    assert fast.timeline()
    close_parallel()
