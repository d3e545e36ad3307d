"""Threads: pinned inside the allocation, gone after use, following it when it changes, not inherited."""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.accelerate.sample_models import Branches, Wide, equal_costs

from corewise.accelerate.kernels.build import load_native_module
from corewise.accelerate.malleable.execute import thread_teams
from corewise.accelerate.malleable.marked_branches import close_parallel
from corewise.accelerate.malleable.module_wrapper import Malleable, malleable
from corewise.accelerate.malleable.plan import planner
from corewise.cache_folder import SHARED_BUILDS_VARIABLE
from corewise.measured.pinning import read_thread_masks

Make = Callable[..., Malleable]


# Threads that existed before the test.
BEFORE: set[int] = set()


@pytest.fixture(autouse=True)
def _alone() -> None:
    """What other tests of this process have left shares no teams with this one and is not counted."""
    gc.collect()
    close_parallel()
    thread_teams._shared.clear()
    BEFORE.clear()
    BEFORE.update(read_thread_masks())


def teams_alive() -> list[str]:
    """List the names of the teams' current threads."""
    masks = {number: mask for number, mask in read_thread_masks().items() if number not in BEFORE}
    return [mask.name for mask in masks.values() if mask.name.startswith("corewise-")]


def teams_that_stay() -> list[str]:
    """List threads that do not end; the kernel may need a moment after Python's join."""
    until = time.monotonic() + 60
    while (alive := teams_alive()) and time.monotonic() < until:
        time.sleep(0.01)
    return alive


def test_threads_are_pinned_inside_the_allocation_and_end_with_close(
    planned: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "measure_costs", equal_costs)
    model, x = Branches().eval(), torch.randn(48, 48)
    first, second = planned(model, x), planned(model, x)
    first(x)
    threads = set(threading.enumerate())
    masks = [mask for mask in read_thread_masks().values() if mask.name.startswith("corewise-")]
    assert masks
    allowed = os.sched_getaffinity(0)
    for mask in masks:
        assert set(mask.cpus) <= allowed
        assert mask.name == f"corewise-{len(mask.cpus)}"
    first.close()
    # It shares the threads, which stay.
    assert torch.allclose(second(x), model(x), atol=1e-5)
    second.close()
    assert teams_that_stay() == []
    assert len(set(threading.enumerate())) < len(threads)


def test_threads_end_when_the_last_reference_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "measure_costs", equal_costs)
    options = {"executor": "python", "planning_s": 0.05, "keep": False, "run": "planned"}
    x = torch.randn(48, 48)
    with torch.no_grad():
        fast = malleable(Branches().eval(), x, **options)
        # The threads have set their names by then.
        fast(x)
    assert teams_alive()
    del fast
    gc.collect()
    assert teams_that_stay() == []


def test_a_forked_child_runs_the_module_itself(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    fast = planned(model, x)
    expected = model(x)
    child = os.fork()
    if child == 0:
        # DataLoader's workers do the same.
        torch.set_num_threads(1)
        good = torch.equal(fast(x), model(x)) and "forked" in fast.explain()
        torch.allclose(fast(x), expected)
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    torch.testing.assert_close(fast(x), expected)


def test_a_forked_child_does_not_wait_for_its_parents_threads(planned: Make) -> None:
    model, x = Wide().eval(), torch.randn(4, 16)
    fast = planned(model, x)
    wide = torch.randn(300, 300)
    expected = wide @ wide
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        good = len(os.listdir("/proc/self/task")) == 1
        good &= torch.allclose(wide @ wide, expected, atol=1e-3) and torch.allclose(fast(x), model(x))
        again = malleable(model, x, keep=False)
        os._exit(0 if good and torch.allclose(again(x), model(x)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_where_there_is_one_thread_the_module_runs_itself(planned: Make) -> None:
    threads = torch.get_num_threads()
    # Same as in a worker of DataLoader.
    torch.set_num_threads(1)
    try:
        fast = planned(Wide(), torch.randn(4, 16))
        assert "only one core" in fast.explain()
        assert teams_that_stay() == []
    finally:
        torch.set_num_threads(threads)


FOLLOWS = """
    import json, os, time
    import torch
    from corewise import malleable
    from corewise.measured.pinning import read_thread_masks
    from tests.accelerate.sample_models import Branches, equal_costs
    from corewise.accelerate.malleable.plan import planner as planning

    planning.measure_costs = equal_costs

    cpus = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(len(cpus))
    model, x = Branches().eval(), torch.randn(48, 48)
    torch.set_grad_enabled(False)
    fast = malleable(model, x, executor="python", planning_s=0.05, keep=False, run="planned")
    seen = []

    def look():
        time.sleep(0.3)
        for _ in range(12):
            assert torch.allclose(fast(x), model(x), atol=1e-5)
        on = [list(teams.cpus) for teams in fast._held_teams]
        until = time.monotonic() + 60  # one that has ended for Python may take the kernel a moment longer
        while not on and num_of_teams() and time.monotonic() < until:
            time.sleep(0.01)
        seen.append([on, torch.get_num_threads(), num_of_teams()])

    def num_of_teams():
        return sum(one.name.startswith("corewise-") for one in read_thread_masks().values())

    look()
    os.sched_setaffinity(0, cpus[:1])
    look()
    os.sched_setaffinity(0, cpus)
    look()
    print(json.dumps(seen))
"""


def test_widths_follow_the_allocation_and_nothing_keeps_the_interpreter(
    tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    num_cpus = len(os.sched_getaffinity(0))
    need(num_cpus > 1, "one CPU cannot be made fewer")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4]), "COREWISE_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FOLLOWS)], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    before, fewer, after = json.loads(done.stdout)
    assert before[:2] == [[sorted(os.sched_getaffinity(0))], num_cpus]
    assert before[2] > 0
    assert fewer == [[], 1, 0]
    assert after[:2] == before[:2]


def test_the_quota_of_a_cgroup_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from corewise.accelerate.malleable.cpu_allocation import list_usable_cpus, read_cpu_quota

    own = Path("/proc/self/cgroup").read_text().splitlines()
    unified = [line.split(":", 2)[2] for line in own if line.split(":", 2)[1] == ""]
    if not unified:
        pytest.skip("no unified control groups here")
    folder = tmp_path / unified[0].lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text("max 100000\n")
    assert read_cpu_quota(str(tmp_path)) is None
    (folder / "cpu.max").write_text("150000 100000\n")
    assert read_cpu_quota(str(tmp_path)) == 1.5
    assert len(list_usable_cpus(64, str(tmp_path))) == 1


CROWDED = """
    import json, os, time
    import torch
    from corewise import malleable
    from corewise.measured.pinning import read_thread_masks
    from tests.accelerate.sample_models import Branches, equal_costs
    from corewise.accelerate.malleable.plan import planner as planning

    planning.measure_costs = equal_costs

    def names():
        return sorted({one.name for one in read_thread_masks().values() if one.name.startswith("corewise-")})

    torch.set_grad_enabled(False)
    model, x = Branches().eval(), torch.randn(48, 48)
    fast = malleable(model, x, executor=EXECUTOR, planning_s=0.05, keep=False, run="planned")
    assert torch.allclose(fast(x), model(x), atol=1e-5)
    seen = [names()]
    fast.close()
    until = time.monotonic() + 60  # one that has ended for Python may take the kernel a moment longer
    while names() and time.monotonic() < until:
        time.sleep(0.01)
    seen.append(names())
    print(json.dumps(seen))
"""


@pytest.mark.parametrize("executor", ["native", "python"])
@pytest.mark.parametrize("policy", ["ACTIVE", "PASSIVE"])
def test_surplus_threads_exist_while_a_plan_has_threads(
    executor: str, policy: str, request: pytest.FixtureRequest, need: Callable[[bool, str], None]
) -> None:
    need(len(os.sched_getaffinity(0)) > 1, "one CPU has no lanes")
    place = str(Path(__file__).resolve().parents[4])
    env = {**os.environ, "PYTHONPATH": place, "OMP_WAIT_POLICY": policy, "GOMP_SPINCOUNT": "300000"}
    if executor == "native":
        request.getfixturevalue("native")
        # The module is built once for all tests.
        env[SHARED_BUILDS_VARIABLE] = str(Path(load_native_module().__file__).parents[2])
    code = textwrap.dedent(CROWDED).replace("EXECUTOR", repr(executor))
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [meanwhile, after] = json.loads(done.stdout)
    lanes = [name for name in meanwhile if name != "corewise-crowd"]
    assert lanes
    assert ("corewise-crowd" in meanwhile) == (policy == "ACTIVE")
    assert after == []


def test_threads_that_no_plan_needs_end(planned: Make, native: None) -> None:
    """What measuring and plans that lost have started."""
    model, x = Wide().eval(), torch.randn(64, 16)
    fast = planned(model, x, executor="native", run="best")
    [held] = fast._held_teams or [None]
    if held is None:
        assert not fast._last_plan.is_planned
        return
    plan = fast._last_plan.decision.plan
    used = {plan.lanes[step.lane] for step in plan.steps if step.lane} if plan else set()
    assert not held._teams, "those of Python's measured only"
    assert sum(one.num_threads() for one in held._attached) == sum(not lane.by_caller for lane in used)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_plan_that_is_being_made_keeps_its_threads(planned: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model on the same teams may end its planning at any moment."""
    monkeypatch.setattr(planner, "measure_costs", equal_costs)
    plain = thread_teams.Teams.provide_team

    def team(self: thread_teams.Teams, *given: object) -> thread_teams.Team:
        alive = plain(self, *given)
        self.end_unused()
        return alive

    monkeypatch.setattr(thread_teams.Teams, "provide_team", team)
    model, x = Branches().eval(), torch.randn(48, 48)
    with torch.no_grad():
        fast = planned(model, x)
        workers = fast._last_plan.decision.executor.workers.values()
        assert workers
        assert all(worker._thread.is_alive() for worker in workers)
        assert torch.allclose(fast(x), model(x), atol=1e-5)


def test_surplus_threads_are_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class Slow:
        def __init__(self, num_cores: int) -> None:
            made.append(self)
            # Another model arrives while these threads start.
            if len(made) == 1:
                other.start()
                other.join(0.2)

        def end(self) -> None:
            pass

    monkeypatch.setattr(thread_teams, "_SurplusThreads", Slow)
    monkeypatch.setattr(thread_teams, "has_active_waiting", lambda: True)
    held = thread_teams.Teams(sorted(os.sched_getaffinity(0)))
    other = threading.Thread(target=held.update_surplus_threads)
    held.provide_team(thread_teams.Lane(0, 1))
    other.join()
    assert len(made) == 1
    held._finalizer()


def test_starting_surplus_threads_does_not_wait_for_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[object] = []
    monkeypatch.setattr(threading, "excepthook", problems.append)
    monkeypatch.setattr(thread_teams, "_NUM_ELEMENTS_FOR_ALL_THREADS", -1)
    made = threading.Thread(target=lambda: thread_teams._SurplusThreads(2).end(), daemon=True)
    made.start()
    made.join(60)
    assert not made.is_alive()
    assert len(problems) == 1
