"""What a run inside a job does in addition: report to the store, and stop before the time limit."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.run.study_runner import RunObserver, StudyOutcome, StudyRun

# Two jobs can share a host. The second one waits until the first has released it.
POLL_HOST_S = 1.0
# A run may exceed the time to stop by this much before it is interrupted.
GRACE_S = 5.0
# The signal that explains an error arrives within this time.
SIGNAL_WAIT_S = 1.0


class JobLimits:
    """The report and the end of a run inside a job; does nothing for other runs."""

    def __init__(self, store: Path, job: str | None, stop_at: float | None) -> None:
        from corewise.submit.job_report import ReportingObserver

        self._reporting = ReportingObserver(store, job) if job is not None else None
        # The time to stop is given on the clock of the calendar, and measured on one that never jumps.
        self.stop_at = None if stop_at is None else time.monotonic() + stop_at - time.time()
        self.is_out_of_time = False

    def observe(self, shown: "RunObserver") -> "RunObserver":
        """Return the observer, which also reports to the store inside a job."""
        return shown if self._reporting is None else self._reporting.show_with(shown)

    @contextlib.contextmanager
    def report_errors(self) -> Iterator[None]:
        """Report a UserError of the block as the end of the job, for the host that submitted it."""
        try:
            yield
        except UserError as problem:
            if self._reporting is not None:
                # Slurm signals all processes of a job that it requeues or cancels at once. An error that another
                # process of the job caused by its end must not count as the end of the job.
                time.sleep(SIGNAL_WAIT_S)
                self._reporting.close(str(problem))
            raise

    def execute(self, study_run: "StudyRun") -> "StudyOutcome":
        """Execute the run, and interrupt it soon after the time to stop."""
        from corewise.submit.job_follow import DONE, OUT_OF_TIME

        try:
            with self._interrupt_late():
                outcome = self._execute_when_free(study_run)
        except KeyboardInterrupt:
            # The scheduler may have returned the job to the queue: only the job's own end is an end.
            if self.is_out_of_time and self._reporting is not None:
                self._reporting.close(OUT_OF_TIME)
            raise
        if self._reporting is not None:
            planned = {trial.trial_id for trial in study_run.plan.trials}
            is_done = planned <= study_run.store.read_done_ids()
            self._reporting.close(DONE if is_done else OUT_OF_TIME, outcome.num_failed)
        return outcome

    def _execute_when_free(self, study_run: "StudyRun") -> "StudyOutcome":
        from corewise.store.leases import LeaseHeld

        while True:
            try:
                return study_run.execute()
            except LeaseHeld:
                if self._reporting is None:
                    raise
                time.sleep(POLL_HOST_S)

    @contextlib.contextmanager
    def _interrupt_late(self) -> Iterator[None]:
        if self.stop_at is None:
            yield
            return
        timer = threading.Timer(max(0.0, self.stop_at + GRACE_S - time.monotonic()), self._interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _interrupt(self) -> None:
        self.is_out_of_time = True
        os.kill(os.getpid(), signal.SIGTERM)
