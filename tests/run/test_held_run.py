"""Runs that stay alive between samplings, with real ranks that are stopped and resumed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corewise.run.held_run import HeldRun
from corewise.run.plan import plan_study
from corewise.run.warm_parent import ParentPool
from corewise.study.study import load_study

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
            raise RuntimeError("asked to fail")
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
    """Start the held runs of a study with two trials; close them at the end."""
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    made: list[HeldRun] = []
    pools: list[ParentPool] = []

    def begin(source: str = OWN, processes: int = 1, mode: str = "infer", runtime: str = "numpy") -> list[HeldRun]:
        Path("own.py").write_text(source)
        text = STUDY.format(workload="own.py:factory", processes=processes, mode=mode, runtime=runtime, batch=4)
        Path("study.yaml").write_text(text)
        plan = plan_study(load_study("study.yaml", []))
        pools.append(ParentPool(plan.worker, Path("logs")))
        for trial in plan.trials:
            parent = pools[-1].get(trial)
            made.append(HeldRun(parent, trial, Path(f"held-{trial.trial_id}").absolute()))
        return made

    yield begin
    for run in made:
        run.close()
    for pool in pools:
        pool.close()


def read_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_stopped(pid: int) -> bool:
    """Wait until the process is stopped; False after a minute."""
    for _ in range(6000):
        if read_state(pid) == "T":
            return True
        time.sleep(0.01)
    return False


def list_ranks(run: "HeldRun") -> list[int]:
    """List the processes of a held run's ranks, which are the children of its keeper."""
    text = Path(f"/proc/{run._pid}/task/{run._pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_two_runs_alternate_and_the_waiting_one_is_stopped(start: Starter) -> None:
    runs = start()
    assert [run.wait_until_ready() for run in runs] == [None, None]
    pids = [list_ranks(run) for run in runs]
    assert all(is_stopped(pid) for each in pids for pid in each)
    for _ in range(3):
        for run in runs:
            found = run.sample(0.02)
            assert found.status == "ok"
            assert len(found.samples_s) >= 2
    assert [run.num_samplings for run in runs] == [3, 3]
    # The processes have stayed the same.
    assert [list_ranks(run) for run in runs] == pids


def test_data_parallel_ranks_can_be_held(start: Starter) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks need two CPUs")
    runs = start(MODULE, processes=2, mode="train", runtime="torch")
    for run in runs:
        assert run.wait_until_ready() is None
    for run in (*runs, *runs):
        found = run.sample(0.02)
        assert (found.status, len(found.ranks)) == ("ok", 2)
        assert found.metrics["samples_per_s"] > 0


def test_a_held_run_that_fails_reports_why_and_does_not_affect_the_other(start: Starter) -> None:
    first, second = start()
    assert first.wait_until_ready() is None
    assert second.wait_until_ready() is None
    Path("fail-now").touch()
    assert "asked to fail" in second.sample(0.02).reason
    # Later samplings report the same failure.
    assert "asked to fail" in second.sample(0.02).reason
    assert first.sample(0.02).status == "ok"


def test_a_rank_killed_while_stopped_is_a_crash(start: Starter) -> None:
    first, second = start()
    assert first.wait_until_ready() is None
    assert second.wait_until_ready() is None
    Path("die-now").touch()
    assert "SIGKILL" in second.sample(0.02).reason
    [pid] = list_ranks(first)
    os.kill(pid, signal.SIGKILL)
    found = first.sample(0.02)
    assert found.status == "failed"
    assert "SIGKILL" in found.reason


def test_a_stopped_rank_does_not_hold_up_the_end_of_its_run(start: Starter) -> None:
    first, _ = start()
    assert first.wait_until_ready() is None
    [pid] = list_ranks(first)
    # The sampling begins, but its rank is stopped again and never answers.
    first._channel.send(cmd="sample", sample_s=600.0, min_samples=1)
    while read_state(pid) == "T":
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    first.close()
    # Far below the time limit of the trial.
    assert time.monotonic() - began < 30.0
    assert not Path(f"/proc/{pid}").exists()


def test_no_rank_outlives_a_killed_keeper(start: Starter) -> None:
    first, _ = start()
    assert first.wait_until_ready() is None
    [pid] = list_ranks(first)
    first.kill()
    for _ in range(6000):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.01)
    pytest.fail("the rank is still running")
