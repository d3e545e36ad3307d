"""Keeps a report page fresh while a study runs; written between measurements, in a process of its own."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.cli.durations import spoken
from corewise.spec.record import Record
from corewise.spec.run import Run
from corewise.spec.trial import Trial

if TYPE_CHECKING:
    from corewise.engine.plan import Plan
    from corewise.engine.run import Observer
    from corewise.store.store import Store

MIN_PAUSE_S = 10.0  # between two writings
MAX_SHARE = 0.05  # of the study's time that may go into writing pages


class ReportKeeper:
    """An observer that hands every call on and rewrites the page when it is due."""

    def __init__(self, inner: "Observer", plan: "Plan", store: "Store", output: Path) -> None:
        self.inner, self.plan, self.store, self.output = inner, plan, store, output
        self.num_trials = self.num_done = 0
        self.seconds_left: float | None = None
        self._due_at_s = 0.0
        self._pause_s = MIN_PAUSE_S
        self._problem = ""

    def planned(self, trials: Sequence[Trial]) -> None:
        self.inner.planned(trials)
        self.num_trials, self.num_done = len(trials), 0
        self._write_if_due()

    def started(self, trial: Trial, run_index: int) -> None:
        self.inner.started(trial, run_index)

    def ran(self, trial: Trial, run: Run, seconds_left: float) -> None:
        self.inner.ran(trial, run, seconds_left)
        self.seconds_left = seconds_left
        self._write_if_due()

    def finished(self, record: Record) -> None:
        self.inner.finished(record)
        self.num_done += bool(record.runs)

    def waiting(self, num_trials: int) -> None:
        self.inner.waiting(num_trials)
        self._write_if_due()

    def _write_if_due(self) -> None:
        began_s = time.monotonic()
        if began_s >= self._due_at_s:
            self._write(self._progress(), self._pause_s)
            took_s = time.monotonic() - began_s
            self._pause_s = max(MIN_PAUSE_S, took_s * (1 / MAX_SHARE - 1))
            self._due_at_s = time.monotonic() + self._pause_s

    def close(self) -> str:
        """Write the page for the last time, without reloading; what went wrong comes back, or nothing."""
        left = self.num_trials - self.num_done
        stopped = (
            f"stopped: {self._counted()}; what unfinished trials show so far is provisional" if left else ""
        )
        self._write(stopped, None)
        return self._problem

    def _write(self, progress: str, refresh_s: float | None) -> None:
        """The page from the store and what unfinished trials have shown; a study never fails for its page."""
        from corewise.engine.provisional import provisional_records
        from corewise.store.lines import seal

        with tempfile.TemporaryDirectory(prefix="corewise-live-") as folder:
            side = Path(folder) / "provisional.jsonl"
            side.write_bytes(b"".join(seal(r.to_json()) for r in provisional_records(self.plan, self.store)))
            words = [sys.executable, "-m", "corewise.report.live", str(self.store.path), str(self.output)]
            words += ["--study", self.plan.study.name, "--provisional", str(side), "--progress", progress]
            if refresh_s is not None:
                words += ["--refresh-s", f"{refresh_s:.0f}"]
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines() or ["no reason told"]
        self._problem = "" if done.returncode == 0 else lines[-1]

    def _progress(self) -> str:
        left = "" if self.seconds_left is None else f", about {spoken(self.seconds_left)} left"
        return f"running: {self._counted()}{left}"

    def _counted(self) -> str:
        return f"{self.num_done} of {self.num_trials} trials done"
