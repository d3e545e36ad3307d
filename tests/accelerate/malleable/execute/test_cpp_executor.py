"""Plans run on C++ threads: the same results, errors, modes and freed memory as plain torch."""

import gc
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.accelerate.sample_models import Lstms, RandomGraph, Wide
from torch import Tensor, nn

from corewise.accelerate.capture.program import Call, Program, Ref
from corewise.accelerate.malleable.capture.module_capture import capture
from corewise.accelerate.malleable.execute.cpp_executor import (
    NativeExecutor,
    NotNativeError,
    get_native_graph,
    get_native_lanes,
)
from corewise.accelerate.malleable.execute.cpp_timing import RecordedRun, record_run, time_calls, time_training
from corewise.accelerate.malleable.execute.module_binding import BoundProgram
from corewise.accelerate.malleable.execute.thread_teams import Teams
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask
from corewise.accelerate.malleable.plan.task_merging import find_chains

pytestmark = pytest.mark.usefixtures("native")
# Two lanes on any machine.
CPUS = sorted(os.sched_getaffinity(0))[:2] * 2


@pytest.fixture
def teams() -> Iterator[Teams]:
    made = Teams(CPUS[:2])
    yield made
    made.release()


def spread(tasks: tuple[OperatorTask, ...], by_caller: bool = False) -> LanePlan:
    """Tasks dealt out to the caller and two lanes in turn."""
    lanes = (Lane(0, 2), Lane(0, 1, by_caller), Lane(1, 1))
    return LanePlan(lanes, tuple(LaneStep(n, n % 3, task.needs) for n, task in enumerate(tasks)), 0.0)


class Planned:
    """A module that runs by a dealt-out plan."""

    def __init__(self, module: nn.Module, teams: Teams, *inputs: Any, by_caller: bool = False) -> None:
        captured = capture(module, inputs, {})
        self.bound = BoundProgram(captured, module)
        self.tasks = find_chains(captured.program)
        self.executor = NativeExecutor(captured.program, self.tasks, spread(self.tasks, by_caller), teams)

    def __call__(self, *inputs: Any) -> Any:
        values = self.bound.collect_values(list(inputs))
        self.executor.run(values)
        return self.bound.build_result(values)


def tiny(targets: list[Any], needs: list[list[int]] | None = None) -> tuple[Program, tuple[OperatorTask, ...]]:
    """One call a task, each of the single input or of the task it needs."""
    needs = needs or [[] for _ in targets]
    calls = tuple(
        Call(f"call_{n}", target, (Ref(needs[n][0] + 1 if needs[n] else 0), *rest), {}, (n + 1,))
        for n, (target, *rest) in enumerate(targets)
    )
    outputs = tuple(Ref(n + 1) for n in range(len(calls)))
    program = Program(calls, len(calls) + 1, (0,), {}, {}, outputs)
    return program, tuple(OperatorTask((n,), tuple(before)) for n, before in enumerate(needs))


def run_tiny(program: Program, tasks: tuple[OperatorTask, ...], teams: Teams, x: Tensor) -> list[Any]:
    values: list[Any] = [x] + [None] * (program.num_values - 1)
    NativeExecutor(program, tasks, spread(tasks), teams).run(values)
    return values[1:]


@pytest.mark.parametrize("by_caller", [False, True])
def test_branches_give_what_plain_execution_gives(teams: Teams, by_caller: bool) -> None:
    model, x = Wide().eval(), torch.randn(3, 16)
    planned = Planned(model, teams, x, by_caller=by_caller)
    width = torch.get_num_threads()
    with torch.no_grad():
        for _ in range(20):
            x = torch.randn(3, 16)
            torch.testing.assert_close(planned(x), model(x), rtol=0, atol=0)
    assert torch.get_num_threads() == width


def test_several_results_and_lists_of_values_are_boxed(teams: Teams) -> None:
    model, x = Lstms().eval(), torch.randn(5, 2, 8)
    with torch.no_grad():
        assert torch.equal(Planned(model, teams, x)(x), model(x))


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_with_views_and_writes_are_equal_to_plain(teams: Teams, seed: int) -> None:
    model, x = RandomGraph(seed, 25, writes=bool(seed % 2)), torch.randn(12, 12)
    planned = Planned(model, teams, x)
    with torch.no_grad():
        expected, actual = model(x), planned(x)
    for one, other in zip(expected["all"], actual["all"], strict=True):
        assert torch.equal(one, other)
    assert torch.equal(expected["sum"], actual["sum"])


def test_parameters_are_read_at_each_call(teams: Teams) -> None:
    model, x = Wide(), torch.randn(2, 16)
    planned = Planned(model, teams, x)
    with torch.no_grad():
        planned(x)
        model.stem.weight.mul_(2)
        model.stem.bias = nn.Parameter(torch.ones(16))
        assert torch.equal(planned(x), model(x))


def test_workers_run_on_their_cpus_with_their_width(teams: Teams) -> None:
    program, tasks = tiny([(torch.ops.aten.neg.default,)] * 3)
    run_tiny(program, tasks, teams, torch.ones(1))
    actual = {}
    for name in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{name}/comm") as comm:
            if comm.read().strip() == "corewise-lane":
                actual[int(name)] = os.sched_getaffinity(int(name))
    assert sorted(map(sorted, actual.values())) == [[teams.cpus[0]], [teams.cpus[1]]]


def test_making_lanes_leaves_the_width_of_threads_to_come(teams: Teams) -> None:
    before = torch.get_num_threads()
    program, tasks = tiny([(torch.ops.aten.neg.default,)] * 3)
    run_tiny(program, tasks, teams, torch.ones(1))
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [before]
    assert torch.get_num_threads() == before


def test_an_error_in_a_lane_is_the_one_plain_torch_raises(teams: Teams) -> None:
    aten = torch.ops.aten
    program, tasks = tiny([(aten.neg.default,), (aten.select.int, 0, 9), (aten.squeeze.dim, 7)])
    with pytest.raises(IndexError) as plain:
        aten.select.int(torch.ones(3), 0, 9)
    # Of two errors, always the first in program order is raised.
    for _ in range(20):
        with pytest.raises(IndexError) as actual:
            run_tiny(program, tasks, teams, torch.ones(3))
        assert str(actual.value) == str(plain.value)


def test_failed_allocations_raise_the_error_of_plain_torch(teams: Teams) -> None:
    aten = torch.ops.aten
    program, tasks = tiny([(aten.neg.default,), (aten.repeat.default, [1 << 46]), (aten.neg.default,)])
    with pytest.raises(RuntimeError, match="can't allocate memory") as plain:
        aten.repeat.default(torch.ones(1), [1 << 46])
    with pytest.raises(RuntimeError, match="can't allocate memory") as actual:
        run_tiny(program, tasks, teams, torch.ones(1))
    assert type(actual.value) is type(plain.value)


def test_the_next_call_after_an_error_works(teams: Teams) -> None:
    model = Wide()
    planned = Planned(model, teams, torch.randn(2, 16))
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            planned(torch.randn(2, 15))
        x = torch.randn(2, 16)
        assert torch.equal(planned(x), model(x))


def test_grad_inference_and_autocast_reach_the_lanes(teams: Teams) -> None:
    program, tasks = tiny([(torch.ops.aten.mm.default, Ref(0))] * 3)
    x = torch.randn(4, 4, requires_grad=True)
    assert all(one.requires_grad for one in run_tiny(program, tasks, teams, x))
    with torch.no_grad():
        assert not any(one.requires_grad for one in run_tiny(program, tasks, teams, x))
    with torch.inference_mode():
        assert all(one.is_inference() for one in run_tiny(program, tasks, teams, x))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert {one.dtype for one in run_tiny(program, tasks, teams, x)} == {torch.bfloat16}


def test_a_value_is_freed_at_its_last_use(teams: Teams) -> None:
    size = 1 << 20
    chain = [(torch.ops.aten.neg.default,)] * 6
    program, tasks = tiny(chain, [[], [0], [1], [2], [3], [4]])
    program = Program(program.calls, program.num_values, (0,), {}, {}, (Ref(6),))
    x = torch.ones(size)
    executor = NativeExecutor(program, tasks, spread(tasks), teams)
    with torch.profiler.profile(profile_memory=True) as profile:
        values: list[Any] = [x] + [None] * 6
        executor.run(values)
    held, most = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert values[1:6] == [None] * 5
    assert torch.equal(values[6], x)
    assert most <= 2 * 4 * size + 4096


def test_outputs_that_are_inputs_are_the_very_objects(teams: Teams) -> None:
    program, tasks = tiny([(torch.ops.aten.neg.default,)])
    program = Program(program.calls, program.num_values, (0,), {}, {}, (Ref(0), Ref(1), 7))
    x = torch.ones(2)
    values: list[Any] = [x, None]
    NativeExecutor(program, tasks, spread(tasks), teams).run(values)
    assert values[0] is x
    assert torch.equal(values[1], -x)


def test_programs_that_call_python_are_refused(teams: Teams) -> None:
    program, _tasks = tiny([(len,)])
    with pytest.raises(NotNativeError, match="call_0 calls Python"):
        get_native_graph(program)


def test_a_plan_that_would_never_end_is_refused(teams: Teams) -> None:
    program, tasks = tiny([(torch.ops.aten.neg.default,)] * 2)
    plan = LanePlan((Lane(0, 2), Lane(0, 1), Lane(1, 1)), (LaneStep(0, 1, (1,)), LaneStep(1, 2, (0,))), 0.0)
    with pytest.raises(ValueError, match="never ends"):
        NativeExecutor(program, tasks, plan, teams)


def test_several_callers_get_their_own_results(teams: Teams) -> None:
    model = Wide()
    planned = Planned(model, teams, torch.randn(2, 16))
    wrong: list[int] = []

    def call(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(2, 16, generator=generator)
                if not torch.equal(planned(x), model(x)):
                    wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_closing_ends_every_thread_and_later_calls_run_on_the_caller() -> None:
    teams, model, x = Teams(CPUS[:2]), Wide(), torch.randn(2, 16)
    planned = Planned(model, teams, x)
    lanes = get_native_lanes(teams)
    assert lanes.num_threads() == 2
    assert lanes.usable()
    teams.release()
    assert lanes.num_threads() == 0
    assert not lanes.usable()
    with torch.no_grad():
        assert torch.equal(planned(x), model(x))


def test_lanes_end_with_the_last_who_holds_their_teams() -> None:
    teams = Teams(CPUS[:2])
    lanes = get_native_lanes(teams)
    gone = weakref.ref(teams)
    del teams
    gc.collect()
    assert gone() is None
    assert not lanes.usable()


def test_a_forked_child_says_that_threads_do_not_survive(teams: Teams) -> None:
    planned = Planned(Wide(), teams, torch.randn(2, 16))
    with torch.no_grad():
        planned(torch.randn(2, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            with torch.no_grad():
                planned(torch.randn(2, 16))
        except RuntimeError as problem:
            code = 0 if "fork" in str(problem) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("lane", [0, 1])
def test_ctrl_c_is_noticed_while_a_long_task_runs(teams: Teams, lane: int) -> None:
    lines = [(torch.ops.aten.neg.default,)] + [(torch.ops.aten.cumsum.default, 0)] * 600
    program, tasks = tiny(lines)
    tasks = (tasks[0], OperatorTask(tuple(range(1, 601)), ()))
    plan = LanePlan((Lane(0, 2), Lane(0, 1)), (LaneStep(0, 0, ()), LaneStep(1, lane, ())), 0.0)
    executor = NativeExecutor(program, tasks, plan, teams)
    values: list[Any] = [torch.ones(2_000_000)] + [None] * 601
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    start = time.monotonic()

    def run_with_timer() -> None:
        # On a busy machine the signal may arrive before the run.
        timer.start()
        executor.run(values)

    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        run_with_timer()
    timer.join()
    assert time.monotonic() - start < 60


def test_warnings_of_lanes_reach_the_caller(teams: Teams) -> None:
    program, tasks = tiny([(torch.ops.aten.std.default,)] * 3)
    with pytest.warns(UserWarning, match="degrees of freedom is <= 0"):
        run_tiny(program, tasks, teams, torch.ones(1))


def test_spans_show_when_each_task_ran(teams: Teams) -> None:
    program, tasks = tiny([(torch.ops.aten.neg.default,)] * 3, [[], [0], [1]])
    executor = NativeExecutor(program, tasks, spread(tasks), teams)
    before = time.perf_counter()
    executor.run([torch.ones(1), None, None, None])
    after = time.perf_counter()
    assert [(span.task, span.lane) for span in executor.spans] == [(0, 0), (1, 1), (2, 2)]
    times = [t for span in executor.spans for t in (span.start_s, span.end_s)]
    assert times == sorted(times)
    assert before <= times[0]
    assert times[-1] <= after


def test_calls_are_timed_on_any_lane_as_often_as_asked(teams: Teams) -> None:
    program, _tasks = tiny([(torch.ops.aten.neg.default,)] * 2, [[], [0]])
    with torch.no_grad():
        known = record_run(program, [torch.ones(1), None, None])
        for lane in (Lane(0, 1), Lane(1, 1), Lane(0, 2)):
            actual = time_calls(known, [1], teams, lane, repeats=30, before=[0])
            assert len(actual) == 30
            assert 0 < min(actual) < 0.1
        assert len(time_calls(known, [0], teams, Lane(0, 1), repeats=10**9, limit_s=0.01)) < 10**6


def test_an_error_while_timing_is_raised(teams: Teams) -> None:
    failing, _ = tiny([(torch.ops.aten.select.int, 0, 9)])
    with pytest.raises(IndexError):
        record_run(failing, [torch.ones(3), None])
    known = record_run(failing, [torch.ones(10), None])
    fewer, _ = tiny([(torch.ops.aten.select.int, 0, 99)])
    with pytest.raises(IndexError):
        time_calls(RecordedRun(fewer, known.values), [0], teams, Lane(0, 1), repeats=3)


def test_forward_and_backward_of_a_task_are_timed_apart(teams: Teams) -> None:
    model, x = Wide(), torch.randn(4, 16)
    planned = Planned(model, teams, x)
    known = record_run(planned.bound.program, planned.bound.collect_values([x]))
    there, back = time_training(planned.executor, known, 1, Lane(1, 1), repeats=5)
    assert len(there) == len(back) == 5
    assert min(there) > 0
    assert min(back) > 0
    assert all(one.grad is None for one in model.parameters())
