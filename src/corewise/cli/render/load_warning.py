"""Warn once if other processes use the CPUs of the allocation, before or during a study."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from corewise.machine.foreign_load import measure_foreign_load
from corewise.measured.trial import Trial
from corewise.study.record import Record
from corewise.study.trial_run import TrialRun

if TYPE_CHECKING:
    from corewise.run.study_runner import RunObserver

# How the probes describe load of others, in the disturbances of a run.
LOAD_OF_OTHERS = "other processes"
EFFECT = "Figures may be several times too slow, most of all with more than one thread. Disturbed runs are marked."
REMEDY = (
    "Wait until they end, or ask for an exclusive node (sbatch --exclusive). "
    "Otherwise let idle threads sleep: add --set wait_policy=passive."
)


class LoadWarner:
    """An observer that forwards every call and warns on standard error, once."""

    def __init__(self, inner: "RunObserver", cpus: Sequence[int]) -> None:
        self.inner, self.cpus = inner, cpus
        self.has_warned = False

    def report_plan(self, trials: Sequence[Trial]) -> None:
        # Nothing of the study runs yet, so all load is that of others.
        if trials:
            load = measure_foreign_load(self.cpus)
            if load.is_busy:
                self._warn(load.describe())
        self.inner.report_plan(trials)

    def report_run_start(self, trial: Trial, run_index: int) -> None:
        self.inner.report_run_start(trial, run_index)

    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        causes = [note for note in run.disturbances if LOAD_OF_OTHERS in note]
        if causes:
            self._warn(f"during a run, {causes[0]}")
        self.inner.report_run_end(trial, run, seconds_left)

    def report_record(self, record: Record) -> None:
        self.inner.report_record(record)

    def report_waiting(self, num_trials: int) -> None:
        self.inner.report_waiting(num_trials)

    def report_counting(self, trial: Trial) -> None:
        self.inner.report_counting(trial)

    def _warn(self, cause: str) -> None:
        if not self.has_warned:
            self.has_warned = True
            print(f"corewise: warning: {cause}. {EFFECT} {REMEDY}", file=sys.stderr, flush=True)
