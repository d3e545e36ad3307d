"""The files a tuning leaves where the user wants them: settings to launch with, and a page."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from corewise.spec.errors import UserError
from corewise.spec.tuned import HEADER, read_tuned
from corewise.tuner.result import UNCONFIRMED, TuneResult
from corewise.tuner.session import Interrupted

Write = Callable[[Path, TuneResult], None]


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
        if self.output is not None:
            _require_ours(self.output)

    def after(self, run: Callable[[], TuneResult], write: Write) -> TuneResult:
        """The result of a tuning, its files written; those of what it has when the user stops it, too."""
        try:
            result, stopped = run(), False
        except Interrupted as interruption:
            result, stopped = interruption.result, True
        try:
            result = self._reported(self._written(result, write))
        except KeyboardInterrupt:  # once more, by somebody in a hurry
            told = "stopped while its files were written: the same command writes them"
            result, stopped = replace(result, notes=(*result.notes, told)), True
        if stopped:
            raise Interrupted(result)
        return result

    def _written(self, result: TuneResult, write: Write) -> TuneResult:
        if self.output is None:
            return result
        if result.found_nothing:
            told = f"{self.output} was not written: there is nothing better than the default to write yet"
            return replace(result, notes=(*result.notes, told))
        notes = result.notes
        if result.verdict == UNCONFIRMED and _is_of_finished(self.output):
            kept = _kept_beside(self.output)
            notes = (*notes, f"{self.output} held the answer of a finished tuning: that is now in {kept}")
        write(self.output, result)
        return replace(result, output=str(self.output), notes=notes)

    def _reported(self, result: TuneResult) -> TuneResult:
        return result if self.report is None else replace(result, report=write_report(self.report, result))


def write_report(path: Path, result: TuneResult) -> str:
    """The path of the page that shows the result, and no other tuning of its store."""
    from corewise.report.gather import build_report
    from corewise.report.page import write_page

    write_page(build_report([Path(result.store)], tunings=[result.key]), path)
    return str(path)


def _require(path: Path, option: str) -> None:
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{path} cannot be written; name a file in a folder that you can write to: {option}")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{path} exists and is not yours to write; name another file with {option}")


def _require_ours(path: Path) -> None:
    """A UserError where the settings would replace what no tuning has written, such as the script itself."""
    if not path.exists():
        return
    if not path.is_file():
        raise UserError(f"{path} is no plain file; name another with --output")
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.strip() and not text.startswith(HEADER.partition(".")[0]) and not _is_tuned(path):
        raise UserError(
            f"{path} exists and is no file of `corewise tune`: it would be lost; name another with --output"
        )


def _is_tuned(path: Path) -> bool:
    try:
        read_tuned(path)
    except UserError:
        return False
    return True


def _is_of_finished(path: Path) -> bool:
    """Whether what stands there is worth keeping: confirmed by fresh runs, or changed by hand."""
    if not path.exists() or not path.read_bytes().strip():
        return False
    try:
        return read_tuned(path).measured is not None
    except UserError:
        return True


def _kept_beside(path: Path) -> Path:
    """Where a copy of the file was put: `tuned.yaml.old`, numbered where there is one."""
    copy, number = path.with_name(f"{path.name}.old"), 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.old{number}")
    try:
        shutil.copy2(path, copy)
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"{copy} cannot be written: {reason}; name another file with --output") from problem
    return copy
