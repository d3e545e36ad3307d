"""How far a trial has come, and whether it needs another run."""

from dataclasses import dataclass, field

from corewise.engine.collect import JUDGED, judge
from corewise.spec.run import Run
from corewise.spec.trial import Trial
from corewise.store.leases import Lease


@dataclass
class TrialProgress:
    """One trial as this process sees it."""

    trial: Trial
    started_at: str
    runs: list[Run] = field(default_factory=list)
    disturbed: list[Run] = field(default_factory=list)
    run_s: list[float] = field(default_factory=list)
    lease: Lease | None = None


def is_settled(progress: TrialProgress) -> bool:
    """True when no further run of the trial is needed."""
    runs, protocol = progress.runs, progress.trial.protocol
    if any(run.status != "ok" for run in runs) or len(runs) >= protocol.max_runs:
        return True
    return len(runs) >= protocol.min_runs and all(judge(protocol, runs, name).stop for name in JUDGED)


def must_repeat(progress: TrialProgress, run: Run) -> bool:
    """True when the run was disturbed and the trial has repeats left."""
    left = progress.trial.protocol.max_repeats_disturbed - len(progress.disturbed)
    return run.status == "ok" and bool(run.disturbances) and left > 0
