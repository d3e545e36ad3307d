"""Unusual uses: an input given twice, the user's threads, invalid options."""

import gc
import io
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.accelerate.sample_models import Wide
from torch import Tensor, nn
from torch.autograd import forward_ad

from corewise.accelerate.malleable import idle_threads
from corewise.accelerate.malleable.adaptive_width import OnlineRace
from corewise.accelerate.malleable.execute.thread_width import set_own_width
from corewise.accelerate.malleable.marked_branches import close_parallel, parallel
from corewise.accelerate.malleable.module_wrapper import Malleable
from corewise.accelerate.malleable.plan.cost_cache import PLAIN

Make = Callable[..., Malleable]
EXECUTORS = pytest.mark.parametrize("executor", ["python", "native"])


@pytest.fixture
def made(planned: Make, request: pytest.FixtureRequest) -> Make:
    """Build models that run a plan on Python or C++ threads."""

    def make(executor: str, model: nn.Module, inputs: Any = None, **options: Any) -> Malleable:
        if executor == "native":
            request.getfixturevalue("native")
        return planned(model, inputs, executor=executor, **options)

    return make


@pytest.fixture
def two_threads(need: Callable[[bool, str], None]) -> Iterator[None]:
    """Set torch to two threads."""
    need(len(os.sched_getaffinity(0)) > 1, "one CPU has no two widths")
    before = torch.get_num_threads()
    close_parallel()
    torch.set_num_threads(2)
    yield
    close_parallel()
    torch.set_num_threads(before)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.fixed = torch.randn(16, 16)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.cat([self.left(one).tanh(), self.right(two).tanh() @ self.fixed])


@EXECUTORS
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("same", ["input", "weight", "attribute", "row"])
def test_an_example_given_twice_is_two_inputs(made: Make, executor: str, grad: bool, same: str) -> None:
    model, x = Towers(), torch.randn(16, 16)
    examples = {
        "input": (x, x),
        "weight": (x, model.left.weight),
        "attribute": (x, model.fixed),
        "row": (x[:1].expand(16, 16),) * 2,
    }
    with torch.set_grad_enabled(grad):
        fast = made(executor, model, examples[same])
        like = [one.detach().requires_grad_(one.requires_grad) for one in examples[same]]
        others = [torch.randn(1, 16).expand(16, 16) if same == "row" else torch.randn(16, 16) for _ in like]
        others = [one.requires_grad_(two.requires_grad) for one, two in zip(others, like, strict=True)]
        torch.testing.assert_close(fast(*others), model(*others))
        assert fast.timeline(), fast.explain()
        assert len(fast._plans) == 1


@EXECUTORS
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("grad", [False, True])
def test_gradients_computed_forwards_are_those_of_the_module(made: Make, executor: str, grad: bool) -> None:
    model, x, along = Wide(), torch.randn(8, 16), torch.randn(8, 16)
    with torch.set_grad_enabled(grad):
        fast = made(executor, model, x)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, along)
            expected, got = (forward_ad.unpack_dual(one(dual)).tangent for one in (model, fast))
            assert "forward-mode" in fast.explain()
        assert got is not None
        torch.testing.assert_close(got, expected)


def width_of_a_new_thread() -> int:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return results[0]


@EXECUTORS
@pytest.mark.usefixtures("two_threads")
def test_threads_that_start_while_a_plan_runs_have_all_cores(made: Make, executor: str) -> None:
    x = torch.randn(2000, 64)
    with torch.no_grad():
        fast = made(executor, Wide(2, 64), x)
        ended = threading.Event()

        def call() -> None:
            with torch.no_grad():
                while not ended.is_set():
                    fast(x)

        caller = threading.Thread(target=call)
        caller.start()
        seen = [width_of_a_new_thread() for _ in range(100)]
        ended.set()
        caller.join()
    assert set(seen) == {2}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_branches_marked_by_hand_leave_the_width_of_threads_to_come() -> None:
    inside = parallel(*[lambda: (torch.get_num_threads(), width_of_a_new_thread())] * 2)
    assert set(inside) == {(1, 2)}
    assert width_of_a_new_thread() == torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_threads_own_width_holds_for_torch_and_for_no_other_thread() -> None:
    try:
        set_own_width(1)
        assert torch.get_num_threads() == 1
        assert width_of_a_new_thread() == 2
    finally:
        set_own_width(2)
    assert torch.get_num_threads() == 2


@EXECUTORS
def test_example_inputs_are_freed_with_their_history(made: Make, executor: str) -> None:
    before = nn.Linear(16, 16)
    x = before(torch.randn(4, 16))
    fast, seen = made(executor, Wide(), x), weakref.ref(x)
    fast(x).sum().backward()
    del x
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus": []}, "cpus is empty"),
        ({"cpus": [0, 100_000]}, "cannot run on 100000"),
        ({"cpus": [-1, 0]}, "cannot run on -1"),
        ({"cpus": "0-1"}, "a list of CPU numbers"),
        ({"cpus": 2}, "a list of CPU numbers"),
        ({"planning_s": -1}, "a number of seconds"),
        ({"planning_s": float("nan")}, "a number of seconds"),
        ({"planning_s": "10"}, "a number of seconds"),
        ({"planning_s": None}, "a number of seconds"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_with_valid_ones(planned: Make, options: dict[str, Any], message: str) -> None:
    mask = os.sched_getaffinity(0)
    with pytest.raises(ValueError, match=message):
        planned(Wide(), **options)
    assert os.sched_getaffinity(0) == mask


@pytest.mark.usefixtures("two_threads")
def test_closing_restores_the_threads_that_the_option_cpus_took(planned: Make) -> None:
    x = torch.randn(4, 16)
    fast = planned(Wide(), x, cpus=sorted(os.sched_getaffinity(0))[:1])
    fast(x)
    assert torch.get_num_threads() == 1
    fast.close()
    assert torch.get_num_threads() == 2


def test_unsupported_inputs_are_explained(planned: Make, caplog: pytest.LogCaptureFixture) -> None:
    idle_threads._logged.clear()

    class Takes(nn.Module):
        def forward(self, x: Tensor, how: object) -> Tensor:
            return x + len(str(how))

    with caplog.at_level(logging.WARNING):
        fast = planned(Takes(), (torch.ones(2), {1, 2}))
    reason = "an input holds a set, which is neither a tensor nor a plain value"
    assert reason in caplog.text
    assert fast.explain() == f"Takes runs unchanged: {reason}."
    assert "an input's layout is sparse_coo" in _explain(planned, torch.ones(2).to_sparse())
    assert "an input is on meta" in _explain(planned, torch.ones(2, device="meta"))
    fast(torch.ones(2), 1)
    assert "inputs 2 float32, 1" in fast.explain()
    assert reason in fast.explain()


def _explain(planned: Make, x: Tensor) -> str:
    return planned(nn.ReLU(), x).explain()


def test_a_number_and_its_negative_zero_are_two_inputs(planned: Make) -> None:
    class Divides(nn.Module):
        def forward(self, x: Tensor, by: float) -> Tensor:
            return x.tanh() / by

    model, x = Divides(), torch.ones(2)
    fast = planned(model, (x, 0.0))
    for by in (0.0, -0.0, -0.0, -0.0, float("nan")):
        assert torch.equal(fast(x, by).nan_to_num(7.0), model(x, by).nan_to_num(7.0))


def test_a_model_that_runs_no_operator_says_so(planned: Make) -> None:
    x = torch.ones(2)
    fast = planned(nn.Identity(), x)
    assert fast(x) is x
    assert "runs unchanged: it runs no operator" in fast.explain()


def test_methods_that_return_the_model_return_the_malleable_one(planned: Make) -> None:
    model = Wide()
    fast = planned(model)
    x = torch.randn(4, 16)
    assert fast.to(torch.float64) is fast
    assert fast.float() is fast
    assert fast.requires_grad_(False) is fast
    assert fast.apply(lambda part: None) is fast
    torch.testing.assert_close(fast(x), model(x))
    assert isinstance(fast.get_parameter("stem.weight"), nn.Parameter)
    torch.save(fast, io.BytesIO())


@EXECUTORS
def test_a_call_that_waits_while_it_is_closed_plans_nothing_any_more(made: Make, executor: str) -> None:
    model, x = Wide(), torch.randn(4, 16)
    fast, results = made(executor, model, x), []
    is_waiting = threading.Event()

    class Guard:
        """The guard, telling that someone comes."""

        def __init__(self, guard: Any) -> None:
            self.guard = guard

        def __enter__(self) -> None:
            is_waiting.set()
            self.guard.acquire()

        def __exit__(self, *problem: object) -> None:
            self.guard.release()

    guard = fast._guard
    guard.acquire()
    fast._guard = Guard(guard)  # type: ignore[assignment]
    caller = threading.Thread(target=lambda: results.append(fast(x)))
    caller.start()
    is_waiting.wait()
    fast.close()
    guard.release()
    caller.join()
    torch.testing.assert_close(results[0], model(x))
    assert fast._held_teams == []
    assert fast._plans == {}


@pytest.mark.usefixtures("two_threads")
def test_backward_that_waits_while_threads_are_closed_runs_on_the_caller(planned: Make) -> None:
    model, x = Wide(), torch.randn(4, 16)
    fast = planned(model, x)
    loss, [held] = fast(x).sum(), fast._held_teams
    with held.lock:
        walker = threading.Thread(target=loss.backward, daemon=True)
        walker.start()
        # It waits for the lock by now, or finds the teams closed later.
        time.sleep(0.2)
        held._finalizer()
    walker.join(60)
    assert not walker.is_alive()
    got = [one.grad for one in model.parameters()]
    torch.testing.assert_close(got, list(torch.autograd.grad(model(x).sum(), list(model.parameters()))))


def test_a_trace_without_tasks_logs_a_warning(planned: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    idle_threads._logged.clear()
    with caplog.at_level(logging.WARNING):
        planned(Wide()).trace(tmp_path / "trace.json")
    assert "trace.json contains no tasks" in caplog.text


@EXECUTORS
def test_the_timeline_of_a_training_step_holds_both_passes(made: Make, executor: str) -> None:
    x = torch.randn(64, 16)
    fast = made(executor, Wide(), x)
    loss = fast(x).sum()
    assert not any(ran.is_backward for ran in fast.timeline())
    loss.backward()
    ran = fast.timeline()
    forward, back = ([one for one in ran if one.is_backward is is_backward] for is_backward in (False, True))
    assert {one.task for one in back} == {one.task for one in forward}
    assert min(one.start_s for one in back) >= max(one.end_s for one in forward)
    fast(x)
    assert not any(one.is_backward for one in fast.timeline())


def test_a_plan_adopted_from_another_size_does_not_show_its_times(planned: Make) -> None:
    model = Wide().eval()
    with torch.no_grad():
        fast = planned(model, torch.randn(512, 16))
        for _ in range(2):
            fast(torch.randn(8, 16))
        whole, other = fast.explain().split("\n\nWide, inputs 8×16")
        assert "no schedule can take less than" in whole
        assert "the plan was adopted from inputs of another size" in other
        assert "can take less than" not in other
        assert "ms at each width" not in other


def test_real_calls_that_decide_on_a_plan_are_explained(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(64, 16)
    with torch.no_grad():
        fast = planned(model, x)
        [entry] = fast._plans.values()
        # Stands for a change of the cores.
        entry._race = OnlineRace()
        assert "not timed" in fast.explain()
        for _ in range(10):
            fast(x)
        assert entry._race is None
        assert entry.decision is not None
        assert set(entry.decision.times_s) == {PLAIN, "moldable"}
        message = fast.explain()
        shown = re.escape(f"{1e3 * entry.decision.times_s[PLAIN]:.3g}")
        assert re.search(rf"^plain +{shown}", message, re.MULTILINE)
        assert "not timed" not in message


def test_a_cached_plan_shows_its_expected_time(planned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COREWISE_PLANS", str(tmp_path))
    model, x = Wide().eval(), torch.randn(64, 16)
    with torch.no_grad():
        first, second = (planned(model, x, keep=True) for _ in range(2))
        [before], [after] = first._plans.values(), second._plans.values()
        assert before.decision is not None
        assert after.decision is not None
        assert after.decision.is_cached
        assert after.decision.expected_s == before.decision.expected_s
