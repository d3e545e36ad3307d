"""`corewise run` warns once about the load of others, with the remedy."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from corewise.cli.render.load_warning import LoadWarner
from corewise.cli.render.run_progress import SilentObserver
from corewise.measured.parameters import Mode, TrialParameters
from corewise.measured.probes.disturbances import describe_disturbances
from corewise.measured.trial import Protocol, Trial
from corewise.study.trial_run import TrialRun

CPUS = sorted(os.sched_getaffinity(0))
METRICS = {"wall_s": 1.0, "other_cpu_s": 0.9, "steal_s": 0.0, "throttled_periods": 0.0, "throttled_s": 0.0}


class CountingObserver(SilentObserver):
    def __init__(self) -> None:
        self.num_plans = self.num_ends = 0

    def report_plan(self, trials: object) -> None:
        self.num_plans += 1

    def report_run_end(self, trial: object, run: object, seconds_left: float) -> None:
        self.num_ends += 1


@pytest.fixture
def busy_strangers() -> Iterator[None]:
    """Keep every CPU busy with a process that is no descendant of this one."""
    loop = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    script = '"$0" -c "$1" >/dev/null 2>&1 & echo $!'
    pids = [
        int(subprocess.run(["sh", "-c", script, sys.executable, loop], capture_output=True, check=True).stdout)
        for _ in CPUS
    ]
    yield
    for pid in pids:
        os.kill(pid, 9)


def build_trial() -> Trial:
    params = TrialParameters(workload="alexnet", mode=Mode.INFER)
    return Trial("t", params, Protocol(), ranks=(), env={}, python=())


def test_a_busy_machine_is_reported_before_the_first_trial(
    busy_strangers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    warner = LoadWarner(inner := CountingObserver(), CPUS)
    warner.report_plan([build_trial()])
    shown = capsys.readouterr().err
    assert shown.startswith("corewise: warning: other processes keep ")
    assert "add --set wait_policy=passive" in shown
    warner.report_plan([build_trial()])
    assert capsys.readouterr().err == ""
    assert inner.num_plans == 2


def test_load_that_disturbs_a_run_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    warner = LoadWarner(inner := CountingObserver(), CPUS)
    # There is nothing to run, so nothing is measured.
    warner.report_plan([])
    disturbed = TrialRun(status="ok", disturbances=tuple(describe_disturbances(METRICS, 2)))
    assert disturbed.disturbances
    quiet = replace(disturbed, disturbances=("the hypervisor took 0.90 s of CPU",))
    warner.report_run_end(build_trial(), quiet, 1.0)
    assert capsys.readouterr().err == ""
    warner.report_run_end(build_trial(), disturbed, 1.0)
    assert "during a run, other processes used 0.90 s of CPU" in capsys.readouterr().err
    warner.report_run_end(build_trial(), disturbed, 1.0)
    assert capsys.readouterr().err == ""
    assert inner.num_ends == 3
