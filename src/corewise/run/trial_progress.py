"""The progress of a trial, and whether it needs another run."""

from dataclasses import dataclass, field

from corewise.measured.trial import Trial
from corewise.run.run_collector import JUDGED_METRICS, judge_metric
from corewise.store.leases import Lease
from corewise.study.trial_run import TrialRun


@dataclass
class TrialProgress:
    """The runs of one trial so far; disturbed runs that were repeated are in `disturbed`."""

    trial: Trial
    started_at: str
    runs: list[TrialRun] = field(default_factory=list)
    disturbed: list[TrialRun] = field(default_factory=list)
    run_s: list[float] = field(default_factory=list)
    # Disturbed runs that count because the study had used up its time for repeats.
    num_unrepeated: int = 0
    lease: Lease | None = None
    # The number of the next run, from which its files are named.
    next_index: int = 0


def is_settled(progress: TrialProgress) -> bool:
    """Return True when the trial needs no further run."""
    runs, protocol = progress.runs, progress.trial.protocol
    if any(run.status != "ok" for run in runs) or len(runs) >= protocol.max_runs:
        return True
    return len(runs) >= protocol.min_runs and all(judge_metric(protocol, runs, name).stop for name in JUDGED_METRICS)


def must_repeat(progress: TrialProgress, run: TrialRun) -> bool:
    """Return True when the run was disturbed and the trial has repeats left."""
    left = progress.trial.protocol.max_repeats_disturbed - len(progress.disturbed)
    return run.status == "ok" and bool(run.disturbances) and left > 0


@dataclass
class RepeatBudget:
    """The time that a whole study may spend on runs that are set aside as disturbed.

    On a busy machine every run is disturbed. Without a bound, repeats would multiply the study's duration
    and still not give an undisturbed run.
    """

    limit_s: float
    spent_s: float = 0.0

    def reserve_repeat(self, run_s: float) -> bool:
        """Reserve time to repeat a run of this duration; False when the budget is exhausted."""
        if self.spent_s + run_s > self.limit_s:
            return False
        self.spent_s += run_s
        return True
