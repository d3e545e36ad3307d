"""The files a tuning leaves where the user wants them: settings to launch with, and a page."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.report.words import short
from corewise.spec.errors import UserError
from corewise.spec.tuned import HEADER, Fingerprint, Tuned, read_tuned, write_tuned
from corewise.tuner.result import UNCONFIRMED, TuneResult
from corewise.tuner.session import Interrupted

Made = Callable[[TuneResult], Tuned]
PAGE_BEGINS_WITHIN = 1000  # bytes
NAMES_WORK = ("batch", "device", "data")  # parameters of what is worked on, with those of the workload itself


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
        if self.report is not None:
            _require_page(self.report)
        if self.output and self.report and self.output.resolve() == self.report.resolve():
            raise UserError(f"{self.report} cannot hold both: name another file with --output or --report")

    def after(self, run: Callable[[], TuneResult], made: Made) -> TuneResult:
        """The result of a tuning, its files written; those of what it has when the user stops it, too."""
        try:
            result, stopped = run(), False
        except Interrupted as interruption:
            result, stopped = interruption.result, True
        try:
            result = self._reported(self._kept(result, made))
        except KeyboardInterrupt:  # once more, by somebody in a hurry
            told = "stopped while its files were written: the same command writes them"
            result, stopped = replace(result, notes=(*result.notes, told)), True
        if stopped:
            raise Interrupted(result)
        return result

    def _kept(self, result: TuneResult, made: Made) -> TuneResult:
        """The result with its settings written; where they cannot be, it says so and is not lost."""
        try:
            return self._written(result, made)
        except UserError as problem:
            return replace(result, notes=(*result.notes, f"the settings were not kept: {problem}"))

    def _written(self, result: TuneResult, made: Made) -> TuneResult:
        if self.output is None:
            return result
        if result.found_nothing:
            told = f"{self.output} was not written: there is nothing better than the default to write yet"
            return replace(result, notes=(*result.notes, told))
        tuned, notes = made(result), result.notes
        held = _held(self.output, tuned, is_confirmed=result.verdict != UNCONFIRMED)
        if held:
            notes = (*notes, f"{self.output} held {held}: that is now in {_kept_beside(self.output)}")
        write_tuned(self.output, tuned)
        return replace(result, output=str(self.output), notes=notes)

    def _reported(self, result: TuneResult) -> TuneResult:
        if self.report is None:
            return result
        try:
            return replace(result, report=write_report(self.report, result))
        except (UserError, OSError) as problem:
            return replace(result, notes=(*result.notes, f"the page was not written: {problem}"))


def write_report(path: Path, result: TuneResult) -> str:
    """The path of the page that shows the result, and no other tuning of its store."""
    from corewise.report.gather import build_report
    from corewise.report.page import write_page

    write_page(build_report([Path(result.store)], tunings=[result.key]), path)
    return str(path)


def _require(path: Path, option: str) -> None:
    if path.is_dir() or not _takes_files(path.absolute().parent):
        raise UserError(f"{path} cannot be written; name a file in a folder that you can write to: {option}")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{path} exists and is not yours to write; name another file with {option}")


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made in a folder, tried: what may be written is not all that permissions say."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


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


def _require_page(path: Path) -> None:
    """A UserError where the page would replace a file that is none, such as the script itself."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        begins = file.read(PAGE_BEGINS_WITHIN).strip().lower()
    if begins and not begins.startswith((b"<!doctype html", b"<html")):
        raise UserError(f"{path} exists and is no HTML page: it would be lost; name another with --report")


def _is_tuned(path: Path) -> bool:
    try:
        read_tuned(path)
    except UserError:
        return False
    return True


def _held(path: Path, tuned: Tuned, *, is_confirmed: bool) -> str:
    """What stands there and is worth keeping beside the new settings, in words; empty where nothing is."""
    if not path.exists() or not path.read_bytes().strip():
        return ""
    try:
        old = read_tuned(path)
    except UserError:
        return "settings that were changed by hand"
    if old.subject != tuned.subject:
        return f"the settings of {short(str(old.subject), 80)}"
    if _work_of(old) != _work_of(tuned):
        return "the settings of other work of that name"
    if not _is_like(old.machine, tuned.machine):
        return f"the settings of another machine, {short(old.machine.hostname or old.machine.cpu_model, 80)}"
    return "the answer of a finished tuning" if old.measured is not None and not is_confirmed else ""


def _work_of(tuned: Tuned) -> dict[str, Any]:
    params = tuned.params.items()
    return {name: value for name, value in params if name in NAMES_WORK or name.startswith("args.")}


def _is_like(one: Fingerprint, other: Fingerprint) -> bool:
    """True for the same kind of machine and the same allocation on it: its name and memory may differ."""
    shapes = [(each.cpu_model, each.num_sockets, each.nodes) for each in (one, other)]
    return shapes[0] == shapes[1]


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
