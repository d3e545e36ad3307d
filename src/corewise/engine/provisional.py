"""What unfinished trials have shown so far, for those who watch a study while it runs."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from corewise.engine.plan import Plan
from corewise.engine.progress import TrialProgress
from corewise.engine.recording import trial_record
from corewise.spec.record import Record, utc_now
from corewise.spec.run import Run
from corewise.spec.trial import Trial
from corewise.store.store import Store


def earlier_runs(folder: Path, trial: Trial) -> TrialProgress:
    """How far a trial has come, from the runs kept in its work folder."""
    progress = TrialProgress(trial, utc_now())
    for path in sorted(folder.glob("run-*.json")):
        with suppress(OSError, ValueError):
            run = Run.from_json(json.loads(path.read_text(encoding="utf-8")))
            (progress.disturbed if path.name.endswith("-disturbed.json") else progress.runs).append(run)
    return progress


def provisional_records(plan: Plan, store: Store) -> list[Record]:
    """A record for each unfinished trial with at least one good run; it is never kept in the store."""
    found = []
    unfinished = set(store.work_ids()) - store.done_ids()
    for trial in plan.trials:
        if trial.trial_id in unfinished:
            folder = store.work_dir(trial.trial_id)
            progress = earlier_runs(folder, trial)
            if any(run.status == "ok" for run in progress.runs):
                record = trial_record(plan, progress, str(store.trial_file(trial.trial_id).parent))
                so_far = f"so far: {len(progress.runs)} of at least {trial.protocol.min_runs} runs"
                began, ended = _first_and_last(folder)
                found.append(
                    replace(record, notes=(*record.notes, so_far), started_at=began, finished_at=ended)
                )
    return found


def _first_and_last(folder: Path) -> tuple[str, str]:
    """When the first and the last kept run of a work folder ended."""
    times_s = [path.stat().st_mtime for path in folder.glob("run-*.json")]
    moments = [datetime.fromtimestamp(each, UTC) for each in (min(times_s), max(times_s))]
    first, last = (each.isoformat(timespec="milliseconds").replace("+00:00", "Z") for each in moments)
    return first, last
