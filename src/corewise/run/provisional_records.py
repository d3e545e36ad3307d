"""Builds provisional records of unfinished trials, for the live report of a running study."""

import json
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from corewise.measured.trial import Trial
from corewise.run.plan import Plan
from corewise.run.record_builder import build_trial_record
from corewise.run.trial_progress import TrialProgress
from corewise.store.store import Store
from corewise.study.record import Record, format_utc_now
from corewise.study.trial_run import TrialRun

_RUN_NUMBER = re.compile(r"run-([0-9]{1,9})\b")


def read_earlier_runs(folder: Path, trial: Trial) -> TrialProgress:
    """Read the progress of a trial from the runs in its work folder; a run that cannot be used is repeated."""
    progress = TrialProgress(trial, format_utc_now())
    for path in sorted(folder.glob("run-*.json")):
        number = _RUN_NUMBER.match(path.name)
        # The file of a repeated run must not replace that of another one.
        progress.next_index = max(progress.next_index, int(number[1]) + 1 if number else 0)
        with suppress(OSError, ValueError, RecursionError):
            run = TrialRun.from_json(json.loads(path.read_text(encoding="utf-8")))
            (progress.disturbed if path.name.endswith("-disturbed.json") else progress.runs).append(run)
    return progress


def build_provisional_records(plan: Plan, store: Store) -> list[Record]:
    """Build a record for each unfinished trial with at least one successful run; the store never holds it."""
    records = []
    unfinished = set(store.list_work_ids()) - store.read_done_ids()
    for trial in plan.trials:
        if trial.trial_id in unfinished:
            folder = store.get_work_dir(trial.trial_id)
            progress = read_earlier_runs(folder, trial)
            if any(run.status == "ok" for run in progress.runs):
                record = build_trial_record(plan, progress, str(store.get_trial_file(trial.trial_id).parent))
                so_far = f"so far: {len(progress.runs)} of at least {trial.protocol.min_runs} runs"
                began, ended = _read_time_span(folder)
                records.append(replace(record, notes=(*record.notes, so_far), started_at=began, finished_at=ended))
    return records


def _read_time_span(folder: Path) -> tuple[str, str]:
    """Read when the first and the last run of a work folder ended."""
    times_s = [path.stat().st_mtime for path in folder.glob("run-*.json")]
    moments = [datetime.fromtimestamp(each, UTC) for each in (min(times_s), max(times_s))]
    first, last = (each.isoformat(timespec="milliseconds").replace("+00:00", "Z") for each in moments)
    return first, last
