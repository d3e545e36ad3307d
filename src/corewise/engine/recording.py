"""What a trial has gone through -> its record."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace

from corewise import __version__
from corewise.engine.collect import record_metrics
from corewise.engine.plan import Plan, Skipped
from corewise.engine.progress import TrialProgress
from corewise.engine.roofline import ceiling_metrics, ceiling_notes
from corewise.launcher.local import hand_command, shell_line
from corewise.spec.record import Record, utc_now
from corewise.spec.trial import NOT_NOW, Trial


def skipped_record(plan: Plan, point: Skipped) -> Record:
    """The record of a point that cannot exist here."""
    base = _base(plan, point.trial_id, "skipped")
    return replace(
        base, kind="infeasible", reason=point.reason, params=point.params, started_at=base.finished_at
    )


def trial_record(plan: Plan, progress: TrialProgress, folder: str) -> Record:
    """The record of a trial that needs no further run."""
    trial = progress.trial
    bad = next((run for run in progress.runs if run.status != "ok"), None)
    status = "ok"
    if bad is not None:
        status = "skipped" if bad.kind in ("infeasible", NOT_NOW) else "failed"
    metrics = {} if bad else record_metrics(trial, progress.runs)
    metrics |= ceiling_metrics(trial, metrics, plan.ceilings)
    return replace(
        _base(plan, trial.trial_id, status),
        kind=bad.kind if bad else "",
        reason=bad.reason if bad else "",
        params=trial.params,
        metrics=metrics,
        runs=tuple(run.to_json() for run in progress.runs),
        disturbed=tuple(run.to_json() for run in progress.disturbed),
        command=by_hand(plan, trial, folder),
        env=trial.env,
        protocol=asdict(trial.protocol),
        work=trial.work,
        notes=_notes(progress, ceiling_notes(trial, metrics, plan.host.facts.caches)),
        started_at=progress.started_at,
    )


def by_hand(plan: Plan, trial: Trial, folder: str) -> str:
    """The line that runs the trial once from a cold start; its file lies in `folder`."""
    file, out = f"{folder}/{trial.trial_id}.json", f"{folder}/{trial.trial_id}-results"
    return shell_line(hand_command(trial, plan.worker, file, out), trial.env, os.environ)


def _base(plan: Plan, trial_id: str, status: str) -> Record:
    return Record(
        trial_id=trial_id,
        status=status,
        study=plan.study.name,
        question=plan.study.question,
        machine=plan.host.describe(),
        versions={"python": plan.interpreter.version, **plan.interpreter.packages},
        corewise_version=__version__,
        finished_at=utc_now(),
    )


def _notes(progress: TrialProgress, of_ceilings: Sequence[str]) -> tuple[str, ...]:
    notes = [note for run in progress.runs for rank in run.ranks for note in rank.get("notes", ())]
    if progress.trial.protocol.start == "fresh":
        notes.append("each rank imported the framework itself: no warm parent")
    return tuple(dict.fromkeys([*notes, *of_ceilings]))
