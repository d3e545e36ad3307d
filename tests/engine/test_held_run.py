"""Runs that stay alive between samplings: real ranks, stopped and woken."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corewise.engine.held_run import HeldRun
from corewise.engine.plan import make_plan
from corewise.engine.warm_parent import ParentPool
from corewise.spec.study import load_study
from corewise.spec.trial import to_json, write_json_aside

STUDY = """
question: Which is faster?
workload: {workload}
mode: {mode}
runtime: {runtime}
axes: {{args.size: [16, 32]}}
fixed: {{threads: 1, batch: {batch}, batch_scope: global, processes: {processes}}}
protocol: {{min_runs: 2, max_runs: 2, min_samples: 2, min_sample_s: 0.01, max_warmup_s: 0.1, timeout_s: 60}}
"""
OWN = """
import os, time
def factory(batch, mode, size):
    steps = [0]
    def step():
        steps[0] += 1
        if size == 32 and os.path.exists("fail-now"):
            raise RuntimeError("told to fail")
        if size == 32 and os.path.exists("die-now"):
            os.kill(os.getpid(), 9)
        time.sleep(0.001)
    return {"step": step, "samples_per_step": batch}
"""
MODULE = """
import torch
def factory(batch, mode, size):
    return torch.nn.Linear(size, 4), (torch.randn(batch, size),), torch.randint(0, 4, (batch,))
"""
Starter = Callable[..., list[HeldRun]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    """Starts the held runs of a study with two trials; all are gone at the end."""
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    made: list[HeldRun] = []
    pools: list[ParentPool] = []

    def begin(
        source: str = OWN, processes: int = 1, mode: str = "infer", runtime: str = "numpy"
    ) -> list[HeldRun]:
        Path("own.py").write_text(source)
        text = STUDY.format(
            workload="own.py:factory", processes=processes, mode=mode, runtime=runtime, batch=4
        )
        Path("study.yaml").write_text(text)
        plan = make_plan(load_study("study.yaml", []))
        pools.append(ParentPool(plan.worker, Path("logs")))
        for trial in plan.trials:
            file = Path(f"{trial.trial_id}.json").absolute()
            write_json_aside(file, to_json(trial))
            parent = pools[-1].get(trial)
            made.append(HeldRun(parent, trial, file, Path(f"held-{trial.trial_id}").absolute()))
        return made

    yield begin
    for run in made:
        run.close()
    for pool in pools:
        pool.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stands_still(pid: int) -> bool:
    """True once the signal has reached the process."""
    for _ in range(6000):
        if state_of(pid) == "T":
            return True
        time.sleep(0.01)
    return False


def pids_of(run: "HeldRun") -> list[int]:
    """The ranks of a held run, from its keeper's children."""
    text = Path(f"/proc/{run._pid}/task/{run._pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_two_runs_take_turns_and_the_one_that_waits_stands_still(start: Starter) -> None:
    runs = start()
    assert [run.wait_until_ready() for run in runs] == [None, None]
    pids = [pids_of(run) for run in runs]
    assert all(stands_still(pid) for each in pids for pid in each)
    for _ in range(3):
        for run in runs:
            found = run.sample(0.02)
            assert found.status == "ok"
            assert len(found.samples_s) >= 2
    assert [run.num_samplings for run in runs] == [3, 3]
    assert [pids_of(run) for run in runs] == pids  # the same processes all the time


def test_ranks_that_train_together_are_held_too(start: Starter) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks need two CPUs")
    runs = start(MODULE, processes=2, mode="train", runtime="torch")
    for run in runs:
        assert run.wait_until_ready() is None
    for run in (*runs, *runs):
        found = run.sample(0.02)
        assert (found.status, len(found.ranks)) == ("ok", 2)
        assert found.metrics["samples_per_s"] > 0


def test_a_run_that_fails_while_held_says_why_and_leaves_the_other_alone(start: Starter) -> None:
    first, second = start()
    assert first.wait_until_ready() is None
    assert second.wait_until_ready() is None
    Path("fail-now").touch()
    assert "told to fail" in second.sample(0.02).reason
    assert "told to fail" in second.sample(0.02).reason  # and keeps saying so
    assert first.sample(0.02).status == "ok"


def test_a_rank_killed_while_it_stands_still_is_a_crash(start: Starter) -> None:
    first, second = start()
    assert first.wait_until_ready() is None
    assert second.wait_until_ready() is None
    Path("die-now").touch()
    assert "SIGKILL" in second.sample(0.02).reason
    [pid] = pids_of(first)
    os.kill(pid, signal.SIGKILL)
    found = first.sample(0.02)
    assert found.status == "failed"
    assert "SIGKILL" in found.reason


def test_no_rank_outlives_a_killed_keeper(start: Starter) -> None:
    first, _ = start()
    assert first.wait_until_ready() is None
    [pid] = pids_of(first)
    first.kill()
    for _ in range(6000):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.01)
    pytest.fail("the rank lives on")
