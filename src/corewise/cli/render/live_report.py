"""Update a report page while a study runs, between measurements and in a separate process."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.measured.trial import Trial
from corewise.owned_files import build_owned_prefix
from corewise.study.durations import format_duration
from corewise.study.record import Record
from corewise.study.trial_run import TrialRun

if TYPE_CHECKING:
    from corewise.run.plan import Plan
    from corewise.run.study_runner import RunObserver
    from corewise.store.store import Store

# The shortest time between two updates, in seconds.
MIN_PAUSE_S = 10.0
# The largest share of the time of the study that may be spent on pages.
MAX_SHARE = 0.05


class ReportUpdater:
    """An observer that forwards every call and updates the page from time to time."""

    def __init__(self, inner: "RunObserver", plan: "Plan", store: "Store", output: Path) -> None:
        self.inner, self.plan, self.store, self.output = inner, plan, store, output
        self.num_trials = self.num_done = 0
        self.seconds_left: float | None = None
        self._due_at_s = 0.0
        self._pause_s = MIN_PAUSE_S
        self._problem = ""

    def report_plan(self, trials: Sequence[Trial]) -> None:
        self.inner.report_plan(trials)
        self.num_trials, self.num_done = len(trials), 0
        self._write_if_due()

    def report_run_start(self, trial: Trial, run_index: int) -> None:
        self.inner.report_run_start(trial, run_index)

    def report_run_end(self, trial: Trial, run: TrialRun, seconds_left: float) -> None:
        self.inner.report_run_end(trial, run, seconds_left)
        self.seconds_left = seconds_left
        self._write_if_due()

    def report_record(self, record: Record) -> None:
        self.inner.report_record(record)
        self.num_done += bool(record.runs)

    def report_waiting(self, num_trials: int) -> None:
        self.inner.report_waiting(num_trials)
        self._write_if_due()

    def report_counting(self, trial: Trial) -> None:
        self.inner.report_counting(trial)

    def _write_if_due(self) -> None:
        began_s = time.monotonic()
        if began_s >= self._due_at_s:
            self._write(self._describe_progress(), self._pause_s)
            took_s = time.monotonic() - began_s
            self._pause_s = max(MIN_PAUSE_S, took_s * (1 / MAX_SHARE - 1))
            self._due_at_s = time.monotonic() + self._pause_s

    def close(self) -> str:
        """Write the final page, which no longer reloads; return the error, if any."""
        left = self.num_trials - self.num_done
        stopped = f"stopped: {self._count_trials()}; results of unfinished trials are provisional" if left else ""
        self._write(stopped, None)
        return self._problem

    def _write(self, progress: str, refresh_s: float | None) -> None:
        """Write the page from the store and unfinished trials; an error does not stop the study."""
        from corewise.run.provisional_records import build_provisional_records
        from corewise.store.sealed_lines import seal

        with tempfile.TemporaryDirectory(prefix=build_owned_prefix("corewise-live")) as folder:
            side = Path(folder) / "provisional.jsonl"
            side.write_bytes(b"".join(seal(r.to_json()) for r in build_provisional_records(self.plan, self.store)))
            command = [sys.executable, "-P", "-m", "corewise.report.live_page", str(self.store.path), str(self.output)]
            command += ["--study", self.plan.study.name, "--provisional", str(side), "--progress", progress]
            if refresh_s is not None:
                command += ["--refresh-s", f"{refresh_s:.0f}"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        self._problem = "" if done.returncode == 0 else lines[-1]

    def _describe_progress(self) -> str:
        left = "" if self.seconds_left is None else f", about {format_duration(self.seconds_left)} left"
        return f"running: {self._count_trials()}{left}"

    def _count_trials(self) -> str:
        return f"{self.num_done} of {self.num_trials} trials done"
