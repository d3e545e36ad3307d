"""The files a tuning leaves where the user wants them: settings to launch with, and a page."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from corewise.spec.errors import UserError
from corewise.tuner.result import TuneResult
from corewise.tuner.session import Interrupted


@dataclass(frozen=True)
class Files:
    """Where the settings and the page go; None: nowhere."""

    output: Path | None = None
    report: Path | None = None

    def require(self) -> None:
        """A UserError for what cannot be written, before anything is measured."""
        for path, option in ((self.output, "--output"), (self.report, "--report")):
            if path is not None:
                _require(path, option)

    def after(self, run: Callable[[], TuneResult], write: Callable[[Path, TuneResult], None]) -> TuneResult:
        """The result of a tuning, its files written; those of what it has when the user stops it, too."""
        try:
            return self._written(run(), write)
        except Interrupted as stopped:
            raise Interrupted(self._written(stopped.result, write)) from None

    def _written(self, result: TuneResult, write: Callable[[Path, TuneResult], None]) -> TuneResult:
        if self.output is not None:
            write(self.output, result)
            result = replace(result, output=str(self.output))
        if self.report is not None:
            result = replace(result, report=write_report(self.report, result))
        return result


def write_report(path: Path, result: TuneResult) -> str:
    """The path of the page that shows the result; empty where no fresh runs were made that it could show."""
    from corewise.report.gather import UnknownStudy, build_report
    from corewise.report.page import write_page

    try:
        made = build_report([Path(result.store)], studies=[result.study])
    except UnknownStudy:
        return ""
    write_page(made, path)
    return str(path)


def _require(path: Path, option: str) -> None:
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{path} cannot be written; name a file in a folder that you can write to: {option}")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{path} exists and is not yours to write; name another file with {option}")
