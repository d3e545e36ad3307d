"""What a job writes to the store about itself, for the host that submitted it.

The report appears before the first trial, so the submitting host knows that the store is shared. Progress is
not in the report: it comes from the records.
"""

import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corewise.errors import UserError
from corewise.measured.trial import Trial
from corewise.study.record import Record, format_utc_now
from corewise.study.trial_run import TrialRun
from corewise.submit.job_log import SCHEMA, write_json_file

if TYPE_CHECKING:
    from corewise.run.study_runner import RunObserver

# Phases of a job.
STARTED, RUNNING, ENDED = "started", "running", "ended"
# Seconds between two updates of the number of runs.
UPDATE_EVERY_S = 5.0
_MAX_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The state of a job, from inside.

    Attributes:
        batch_id: The id that the scheduler gave to the job.
        trial_ids: The trials that had no record when the job began.
        num_runs: Runs that this job has finished, also of trials without a record.
        outcome: Why the job ended: `done`, `time`, or the text of an error.
    """

    phase: str
    host: str
    batch_id: str
    started_at: str
    trial_ids: tuple[str, ...] = ()
    num_runs: int = 0
    outcome: str = ""
    num_failed: int = 0


def build_report_path(store: Path, name: str) -> Path:
    """Build the path of a job's report."""
    return store / "jobs" / f"{name}.report.json"


def read_report(store: Path, name: str) -> JobReport | None:
    """Read the report of a job; None if there is none yet."""
    try:
        with open(build_report_path(store, name), "rb") as file:
            values = json.loads(file.read(_MAX_BYTES))
        return _parse_report(values)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _parse_report(values: Mapping[str, Any]) -> JobReport:
    return JobReport(
        phase=str(values["phase"]),
        host=str(values["host"]),
        batch_id=str(values["batch_id"]),
        started_at=str(values["started_at"]),
        trial_ids=tuple(str(each) for each in values["trial_ids"]),
        num_runs=int(values["num_runs"]),
        outcome=str(values["outcome"]),
        num_failed=int(values["num_failed"]),
    )


class ReportingObserver:
    """Follows the run inside a job and writes the report; passes all calls on to another observer."""

    def __init__(self, store: Path, name: str) -> None:
        """Write the first report; raises a UserError if the job cannot write to the store."""
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise UserError(f"--job {name}: not the name of a job; this option is for batch scripts of Corewise")
        self._path = build_report_path(store, name)
        self._shown: RunObserver | None = None
        self._written_at_s = 0.0
        host, batch_id = socket.gethostname(), os.environ.get("SLURM_JOB_ID", "")
        self._report = JobReport(phase=STARTED, host=host, batch_id=batch_id, started_at=format_utc_now())
        try:
            self._write()
        except OSError as error:
            raise UserError(
                f"the job cannot write to the store {store} on {host}: {error.strerror or error}; "
                "choose a folder with --store that all nodes share"
            ) from error

    def show_with(self, shown: "RunObserver") -> "ReportingObserver":
        """Pass all later calls on to this observer too."""
        self._shown = shown
        return self

    def report_plan(self, trials: Sequence[Trial]) -> None:
        """Write which trials this job has to run."""
        ids = tuple(trial.trial_id for trial in trials)
        self._report = replace(self._report, phase=RUNNING, trial_ids=ids)
        self._write()
        if self._shown is not None:
            self._shown.report_plan(trials)

    def report_run_start(self, trial: Trial, run_index: int) -> None:
        """Pass the call on."""
        if self._shown is not None:
            self._shown.report_run_start(trial, run_index)

    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        """Count the run."""
        self._report = replace(self._report, num_runs=self._report.num_runs + 1)
        if time.monotonic() - self._written_at_s > UPDATE_EVERY_S:
            self._write()
        if self._shown is not None:
            self._shown.report_run_end(trial, run, seconds_left)

    def report_record(self, record: Record) -> None:
        """Pass the call on."""
        if self._shown is not None:
            self._shown.report_record(record)

    def report_waiting(self, num_trials: int) -> None:
        """Pass the call on."""
        if self._shown is not None:
            self._shown.report_waiting(num_trials)

    def report_counting(self, trial: Trial) -> None:
        """Pass the call on."""
        if self._shown is not None:
            self._shown.report_counting(trial)

    def close(self, outcome: str, num_failed: int = 0) -> None:
        """Write how the job ended."""
        self._report = replace(self._report, phase=ENDED, outcome=outcome, num_failed=num_failed)
        # The records are safe without the report.
        with suppress(OSError):
            self._write()

    def _write(self) -> None:
        write_json_file(self._path, {"schema": SCHEMA, **asdict(self._report)})
        self._written_at_s = time.monotonic()
