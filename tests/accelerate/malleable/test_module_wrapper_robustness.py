"""No deadlocks, damaged files are ignored, and a narrow win of plain execution is checked again."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.accelerate.malleable.plan.sample_cached_plan import CACHED_PLAN
from tests.accelerate.sample_models import Wide

from corewise.accelerate.capture.export_silence import export_quietly
from corewise.accelerate.capture.program import Call, Program, Ref
from corewise.accelerate.kernels import build
from corewise.accelerate.malleable.execute import thread_teams
from corewise.accelerate.malleable.execute.python_executor import PythonExecutor
from corewise.accelerate.malleable.execute.thread_teams import Team, is_in_team, provide_shared_teams
from corewise.accelerate.malleable.marked_branches import close_parallel, parallel
from corewise.accelerate.malleable.module_wrapper import Malleable
from corewise.accelerate.malleable.plan import cost_cache, planner
from corewise.accelerate.malleable.plan.candidate_choice import is_doubtful
from corewise.accelerate.malleable.plan.cost_cache import load_plan, save_plan
from corewise.accelerate.malleable.plan.planner import PlanDecision, decide
from corewise.accelerate.malleable.plan.schedule import Lane, LanePlan, LaneStep, OperatorTask
from corewise.cache_folder import SHARED_BUILDS_VARIABLE, open_builds_folder

Make = Callable[..., Malleable]
# Far longer than any of these tests takes; only a deadlock reaches it.
LONGEST_S = 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run_to_end(job: Callable[[], Any]) -> Any:
    """Return the result of a job; fail if it never ends."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(job()), daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    assert not thread.is_alive(), "it waits for ever"
    return results[0]


def both(x: torch.Tensor) -> torch.Tensor:
    first, second = parallel(lambda: x * 2, lambda: x * 3)
    return torch.as_tensor(first + second)


def test_branches_marked_inside_a_plan_of_cpp_threads_run_one_after_the_other(native: None) -> None:
    from corewise.accelerate.malleable.execute.cpp_executor import NativeExecutor

    with torch.library._scoped_library("corewise_robust", "DEF") as library:
        library.define("both(Tensor x) -> Tensor")
        library.impl("both", both, "CPU")
        operator = torch.ops.corewise_robust.both.default
        calls = tuple(Call(f"both_{n}", operator, (Ref(0),), {}, (n + 1,)) for n in range(3))
        program = Program(calls, 4, (0,), {}, {}, (Ref(1), Ref(2), Ref(3)))
        steps = tuple(LaneStep(n, n, ()) for n in range(3))
        plan = LanePlan((Lane(0, 2), Lane(0, 1), Lane(1, 1)), steps, 0.0)
        held = provide_shared_teams(sorted(os.sched_getaffinity(0))[:2])
        executor = NativeExecutor(program, [OperatorTask((n,), ()) for n in range(3)], plan, held)

        def run() -> list[Any]:
            values = [torch.ones(2), None, None, None]
            with held.lock:
                executor.run(values)
            return values[1:]

        assert all(torch.equal(one, torch.full((2,), 5.0)) for one in run_to_end(run))
        held.release()
        close_parallel()


def test_a_branch_may_wait_for_a_thread_that_marks_branches() -> None:
    with ThreadPoolExecutor(1) as pool:
        inner = run_to_end(lambda: parallel(lambda: pool.submit(both, torch.ones(1)).result(LONGEST_S), is_in_team))
    close_parallel()
    assert inner[0].item() == 5
    assert inner[1]
    assert not is_in_team()


def test_a_model_called_while_branches_wait_for_it_runs_as_it_is(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        fast = planned(model, x)
        results = run_to_end(lambda: parallel(lambda: pool.submit(fast, x).result(LONGEST_S), lambda: None))[0]
        close_parallel()
        torch.testing.assert_close(results, model(x))


def test_teams_are_released_while_teams_are_being_asked_for() -> None:
    held = provide_shared_teams((0, 0))

    def collected_meanwhile() -> bool:
        # Garbage collection does the same in the calling thread.
        with thread_teams._shared_lock:
            held.release()
        return held.is_open

    assert not run_to_end(collected_meanwhile)


def test_teams_released_during_a_run_end_after_it() -> None:
    others = set(threading.enumerate())
    held = provide_shared_teams((0, 0))
    held.provide_team(Lane(0, 1))
    with held.lock:
        held.release()
        assert held.is_open
    for thread in threading.enumerate():
        if thread not in others and thread.daemon:
            thread.join(LONGEST_S)
    assert not held.is_open


@pytest.mark.parametrize("is_given", [False, True])
def test_an_interrupt_while_work_is_handed_out_is_raised_and_nobody_waits(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tuple(Call(f"relu_{n}", torch.relu, (Ref(0),), {}, (n + 1,)) for n in range(3))
    program = Program(calls, 4, (0,), {}, {}, (Ref(1), Ref(2), Ref(3)))
    # Caller and worker wait for each other.
    steps = (LaneStep(0, 1, ()), LaneStep(1, 0, (0,)), LaneStep(2, 1, (1,)))
    plan = LanePlan((Lane(0, 2), Lane(0, 1)), steps, 0.0)
    held = provide_shared_teams((0, 0))
    executor = PythonExecutor(
        program, [OperatorTask((0,), ()), OperatorTask((1,), (0,)), OperatorTask((2,), (1,))], plan, held
    )

    def run() -> list[Any]:
        values: list[Any] = [torch.ones(2), None, None, None]
        try:
            executor.run(values)
        except KeyboardInterrupt:
            return []
        return values[1:]

    give = Team.give

    def interrupted(team: Team, job: Any) -> None:
        if is_given:
            give(team, job)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Team, "give", interrupted)
        assert run_to_end(run) == []
    assert len(run_to_end(run)) == 3
    held.release()


def test_explaining_after_cores_were_taken_away(planned: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 16)
    with torch.no_grad():
        fast = planned(Wide().eval(), x)
        monkeypatch.setattr(Malleable, "_read_cpus", lambda self: (0,))
        messages = fast.explain()
        assert "may use 1 now, so the module itself runs" in messages
        [entry] = fast._plans.values()
        # Stands for a change of the allocation.
        entry.decision.bound_s = 0.0
        assert "less than 0 ms" not in fast.explain()


DAMAGES: list[Callable[[dict[str, Any]], object]] = [
    lambda d: d.update(call_costs=[{}, {}]),
    lambda d: d.update(call_costs=[{"1": 1.0, "2": 0.5}, {"1": 1.0}]),
    lambda d: d.update(call_costs=[{"1": float("nan"), "2": 0.5}] * 2),
    lambda d: d.update(call_costs=[{"1": -1.0, "2": 0.5}] * 2),
    lambda d: d["times_s"].update(plain=float("inf")),
    lambda d: d["times_s"].update(moldable=0),
    lambda d: d["times_s"].pop("moldable"),
    lambda d: d.update(chosen="unheard of"),
    lambda d: d.update(plan=None),
    lambda d: d.update(bound_s=None),
    lambda d: d["plan"].update(steps=d["plan"]["steps"][::-1]),
    lambda d: d["plan"]["lanes"][1].update(width=9),
    lambda d: d["tasks"][1].update(calls=[]),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_cached_file_with_invalid_content_is_ignored(damage: Callable[[dict[str, Any]], object]) -> None:
    save_plan("key", CACHED_PLAN)
    path = cost_cache.get_cache_folder() / "key.json"
    data = json.loads(path.read_text())
    assert load_plan("key", 2) == CACHED_PLAN
    damage(data)
    path.write_text(json.dumps(data))
    assert load_plan("key", 2) is None


def decided_again(fast: Malleable, x: torch.Tensor) -> PlanDecision:
    """Decide again as in another run; the plan has dropped its inputs."""
    [entry] = fast._plans.values()
    assert entry.case is not None
    assert entry._teams is not None
    return decide(replace(entry.case, leaves=(x,), call_plain=lambda: fast.module(x)), entry._teams)


def test_cached_tasks_in_another_order_are_measured_again(planned: Make) -> None:
    x = torch.randn(32, 16)
    with torch.no_grad():
        fast = planned(Wide().eval(), x, keep=True)
        assert decided_again(fast, x).is_cached
        [path] = cost_cache.get_cache_folder().iterdir()
        data = json.loads(path.read_text())
        for task in data["tasks"]:
            task["calls"] = task["calls"][::-1]
        path.write_text(json.dumps(data))
        assert not decided_again(fast, x).is_cached


@pytest.mark.parametrize(("rival_s", "num_races"), [(1.03, 3), (1.5, 1)])
def test_a_narrow_win_of_plain_execution_is_raced_again_at_once_and_never_later(
    planned: Make, monkeypatch: pytest.MonkeyPatch, rival_s: float, num_races: int
) -> None:
    raced: list[int] = []

    def timed(candidates: Any, budget_s: float) -> dict[str, list[float]]:
        raced.append(len(candidates))
        return {name: [1.0 if name == "plain" else rival_s] * 4 for name in candidates}

    monkeypatch.setattr(planner, "time_candidates", timed)
    x = torch.randn(32, 16)
    with torch.no_grad():
        fast = planned(Wide().eval(), x, keep=True, run="best", planning_s=60.0)
        assert len(raced) == num_races
        assert decided_again(fast, x).is_cached
    assert len(raced) == num_races


def test_only_doubtful_wins_of_plain_execution_are_doubted() -> None:
    clear = {"plain": [1.0] * 4, "moldable": [1.5] * 4, "1×2": [1.0] * 4}
    assert not is_doubtful(clear, ["moldable"])
    assert is_doubtful({**clear, "plain": [0.8, 0.9, 1.2, 1.3]}, ["moldable"])
    assert is_doubtful({**clear, "moldable": [1.02] * 4}, ["moldable"])
    assert not is_doubtful(clear, [])


def test_more_cores_give_plans_another_chance(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(32, 16)
    with torch.no_grad():
        fast = planned(model, x, run="best")
        [entry] = fast._plans.values()
        # Plain execution has won.
        entry.decision.executor = None
        entry.decision.call_costs = tuple(dict.fromkeys(cost, 1.0) for cost in entry.decision.call_costs)
        fast(x)
        assert not entry.is_planned
        # Stands for a process with one core at the last call.
        entry._num_cores = 1
        # Not all short calls are checked.
        for _ in range(8):
            torch.testing.assert_close(fast(x), model(x))
            # A race begins, which plain execution may win.
            if entry.is_planned:
                break
        assert entry.is_planned


@pytest.mark.parametrize(("plain_s", "num_looked_at"), [(0.001, 2), (1.0, 16)])
def test_short_plain_calls_are_mostly_unchecked(
    planned: Make, monkeypatch: pytest.MonkeyPatch, plain_s: float, num_looked_at: int
) -> None:
    model, x = Wide().eval(), torch.randn(32, 16)
    looked_at: list[int] = []
    looking = Malleable._find_plan

    def counted(self: Malleable, args: Any, kwargs: Any) -> Any:
        looked_at.append(1)
        return looking(self, args, kwargs)

    with torch.no_grad():
        fast = planned(model, x, run="best")
        [entry] = fast._plans.values()
        # Plain execution has won.
        entry.decision.executor = None
        entry.decision.times_s = {"plain": plain_s}
        monkeypatch.setattr(Malleable, "_find_plan", counted)
        for _ in range(16):
            torch.testing.assert_close(fast(x), model(x))
        assert len(looked_at) == num_looked_at


def test_a_damaged_build_is_rebuilt_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHARED_BUILDS_VARIABLE, str(tmp_path / "own"))
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\necho >> "$(dirname "$0")/calls"\n'
        'while [ $# -gt 1 ]; do [ "$1" = "-o" ] && echo new > "$2"; shift; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    target = build._name_build(open_builds_folder(f"{build.FOLDER}/{build._compute_build_key()}"), str(compiler))
    target.write_text("damaged")
    with pytest.raises(
        build.NativeBuildError,
        match="cannot be loaded",
        # The fake compiler produces no module.
    ):
        build._load_or_rebuild()
    assert target.read_text() == "new\n"
    assert len((tmp_path / "calls").read_text().splitlines()) == len(build.UNITS) + 1


def test_capture_leaves_what_others_log_and_print(caplog: pytest.LogCaptureFixture) -> None:
    stderr = sys.stderr
    logger = logging.getLogger("torch.export")
    with caplog.at_level(logging.WARNING), export_quietly():
        assert sys.stderr is stderr
        logger.warning("ours")
        logging.getLogger("another").warning("mine")
        run_to_end(lambda: logger.warning("of another thread"))
    logger.warning("later")
    messages = [record.getMessage() for record in caplog.records]
    assert "ours" not in messages
    assert "mine" in messages
