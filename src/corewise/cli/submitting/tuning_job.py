"""What a tuning inside a job does in addition: it reports its start, its answer and its errors to the store."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.errors import UserError

if TYPE_CHECKING:
    from corewise.tuning.result.tuning_result import TuneResult


class TuningJob:
    """The report of a tuning inside a job; does nothing for other tunings."""

    def __init__(self, store: Path, job: str | None) -> None:
        from corewise.store.store import Store
        from corewise.submit.job_report import ReportingObserver

        self.store, self.job = store, job or ""
        self._report: ReportingObserver | None = None
        if job is not None:
            self._report = ReportingObserver(Store.open(store, create=True).path, job)

    @contextmanager
    def report_errors(self) -> Iterator[None]:
        """Report a UserError of the block as the end of the job."""
        try:
            yield
        except UserError as problem:
            if self._report is not None:
                self._report.close(str(problem))
            raise

    def report_answer(self, result: "TuneResult", exit_code: int) -> bool:
        """Write the answer to the store; return False where this is no job."""
        from corewise.submit.job_follow import DONE
        from corewise.submit.tuning_answer import TuningAnswer, write_answer

        if self._report is None:
            return False
        write_answer(self.store, self.job, TuningAnswer(str(result), result.to_json(), exit_code))
        self._report.close(DONE)
        return True
