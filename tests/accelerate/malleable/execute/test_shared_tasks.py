"""Tasks of slices that idle cores take over from busy ones: same results, whoever runs them."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.accelerate.sample_models import RandomGraph
from torch import Tensor, nn

from corewise.accelerate.capture.program import Program
from corewise.accelerate.malleable.capture.module_capture import capture
from corewise.accelerate.malleable.execute.cpp_executor import NativeExecutor, find_shared_tasks
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask
from corewise.accelerate.malleable.plan.task_merging import build_call_graph, find_chains, merge_calls, split_slice

pytestmark = pytest.mark.usefixtures("native")
# Two lanes on any machine.
CPUS = sorted(os.sched_getaffinity(0))[:2] * 2
LANES = (Lane(0, 2), Lane(0, 1, by_caller=True), Lane(1, 1), Lane(2, 1))


class Members(nn.Module):
    """Four recurrent layers side by side on one input, and what joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(6, 5, batch_first=True) for _ in range(4))
        self.last = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.last(torch.cat([layer(x)[0][:, -1] for layer in self.layers], -1))
        return joined


@pytest.fixture
def teams() -> Iterator[Teams]:
    made = Teams(CPUS[:3])
    yield made
    made.release()


def all_on(lane: int, tasks: tuple[OperatorTask, ...], *others: int) -> LanePlan:
    """Put everything on one lane except the first tasks."""
    lanes = [*others, *[lane] * (len(tasks) - len(others))]
    return LanePlan(LANES, tuple(LaneStep(n, lanes[n], task.needs) for n, task in enumerate(tasks)), 0.0)


def with_costly_layers(program: Program) -> tuple[OperatorTask, ...]:
    costs = [{1: 1e-3} if str(call.target) == "aten.lstm.input" else {1: 2e-5} for call in program.calls]
    return merge_calls(program, costs, 1e-6)


def layers_of(program: Program, task: OperatorTask) -> list[int]:
    return [call for call in task.calls if str(program.calls[call].target) == "aten.lstm.input"]


def test_each_costly_layer_of_a_slice_is_a_task_that_needs_no_other_slice() -> None:
    program = capture(Members(), (torch.randn(128, 9, 6),), {}, 2).program
    tasks = with_costly_layers(program)
    costly = [number for number, task in enumerate(tasks) if layers_of(program, task)]
    num_slices = 1 + max(part for part in program.slices if part is not None)
    assert [len(layers_of(program, tasks[number])) for number in costly] == [1] * (4 * num_slices)
    # Views and zeros are separate parts.
    assert all(tasks[number].needs == () for number in costly)
    assert set(costly) <= find_shared_tasks(program, tasks)


def test_calls_between_costly_ones_are_a_separate_part() -> None:
    # 0 feeds 1 and 2; 3 follows 1; 4 follows 3 and 2; 5 is costly after 4; 6 follows it.
    before: list[set[int]] = [set(), {0}, {0}, {1}, {3, 2}, {4}, {5}]
    costs = [{1: 1.0 if call in (1, 2, 5) else 0.01} for call in range(7)]
    assert split_slice(range(7), before, costs) == [[0], [1, 3], [2], [4], [5, 6]]


def test_calls_of_a_program_that_is_not_cut_stay_where_they_were_planned() -> None:
    program = capture(Members(), (torch.randn(128, 9, 6),), {}).program
    assert find_shared_tasks(program, find_chains(program)) == frozenset()


# Either the caller's branch or another thread's.
@pytest.mark.parametrize("busy", [1, 2])
def test_idle_cores_take_tasks_of_a_busy_one(teams: Teams, busy: int) -> None:
    model = Members().eval()
    x = torch.randn(128, 300, 6)
    captured = capture(model, (x,), {}, 2)
    bound, tasks = BoundProgram(captured, model), with_costly_layers(captured.program)
    executor = NativeExecutor(captured.program, tasks, all_on(busy, tasks, 3, 3 - busy), teams)
    helpers = set()
    with torch.no_grad():
        for number in range(200):
            x = torch.randn(128, 300, 6)
            values = bound.collect_values([x])
            executor.run(values)
            torch.testing.assert_close(bound.build_result(values), model(x), rtol=1e-5, atol=1e-6)
            helpers |= {span.lane for span in executor.spans if span.task > 1}
            # A busy machine may need more runs.
            if number >= 4 and len(helpers) > 1:
                break
    assert len(helpers) > 1
    assert sorted(span.task for span in executor.spans) == list(range(len(tasks)))


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_whose_tasks_move_are_equal_to_plain(teams: Teams, seed: int) -> None:
    model, x = RandomGraph(seed, 25, writes=bool(seed % 2)), torch.randn(12, 12)
    captured = capture(model, (x,), {})
    program = replace(captured.program, is_cut=True, slices=(0,) * len(captured.program.calls))
    # One call per task, so that as much as possible can be taken over.
    tasks = tuple(OperatorTask((call,), tuple(sorted(needed))) for call, needed in enumerate(build_call_graph(program)))
    bound = BoundProgram(captured, model)
    plan = LanePlan(LANES, tuple(LaneStep(n, 1 + n % 3, task.needs) for n, task in enumerate(tasks)), 0.0)
    executor = NativeExecutor(program, tasks, plan, teams)
    with torch.no_grad():
        for _ in range(5):
            values = bound.collect_values([x.clone()])
            executor.run(values)
            actual: Any = bound.build_result(values)
            expected = model(x.clone())
            assert torch.equal(expected["sum"], actual["sum"])
            for one, other in zip(expected["all"], actual["all"], strict=True):
                assert torch.equal(one, other)


def test_an_error_in_a_task_that_moved_is_raised_once_all_have_ended(teams: Teams) -> None:
    model = Members().eval()
    captured = capture(model, (torch.randn(128, 300, 6),), {}, 2)
    bound, tasks = BoundProgram(captured, model), with_costly_layers(captured.program)
    executor = NativeExecutor(captured.program, tasks, all_on(2, tasks, 3, 1), teams)
    with torch.no_grad():
        with pytest.raises((RuntimeError, ValueError), match="type"):
            executor.run(bound.collect_values([torch.randn(128, 300, 6, dtype=torch.float64)]))
        x = torch.randn(128, 300, 6)
        values = bound.collect_values([x])
        executor.run(values)
        torch.testing.assert_close(bound.build_result(values), model(x), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_plain_training_whoever_runs_the_backward_pass(teams: Teams) -> None:
    model = Members().double()
    x = torch.randn(128, 60, 6, dtype=torch.float64)
    captured = capture(model, (x,), {}, 2)
    bound, tasks = BoundProgram(captured, model), with_costly_layers(captured.program)
    executor = NativeExecutor(captured.program, tasks, all_on(2, tasks, 3, 1), teams)
    helpers = set()
    for number in range(10):
        x = torch.randn(128, 60, 6, dtype=torch.float64)
        actual = []
        for run in (lambda x=x: model(x), lambda x=x: planned(executor, bound, x)):
            model.zero_grad()
            run().square().sum().backward()
            actual.append([parameter.grad for parameter in model.parameters()])
        for one, other in zip(*actual, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
        helpers |= {span.lane for span in executor.backward_spans}
        if number >= 2 and len(helpers) > 1:
            break
    assert len(helpers) > 1


def planned(executor: NativeExecutor, bound: BoundProgram, x: Tensor) -> Any:
    values = bound.collect_values([x])
    executor.run(values)
    return bound.build_result(values)
