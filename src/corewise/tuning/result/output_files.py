"""The files a tuning writes for the user: the tuned file for `corewise launch`, and an HTML report."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.analysis.tuning_results import NOT_MEASURED, UNCONFIRMED
from corewise.errors import UserError
from corewise.study.tuned_file import HEADER, MachineFingerprint, TunedSettings, read_tuned, write_tuned
from corewise.text_format import shorten
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.session import Interrupted

TunedFileBuilder = Callable[[TuneResult], TunedSettings]
# An HTML page starts within this many bytes.
PAGE_HEADER_BYTES = 1000
# These parameters and those of the workload (args.*) define the work, not how it runs.
WORK_PARAMETERS = ("batch", "device", "data")


@dataclass(frozen=True)
class ResultFiles:
    """The paths of tuned file and report; None if not wanted."""

    output: Path | None = None
    report: Path | None = None

    def require_writable(self) -> None:
        """Raise UserError, before anything is measured, if a file cannot be written."""
        for path, option in ((self.output, "--output"), (self.report, "--report")):
            if path is not None:
                _require_writable(path, option)
        if self.output is not None:
            _require_ours(self.output)
        if self.report is not None:
            _require_page(self.report)
        if self.output and self.report and self.output.resolve() == self.report.resolve():
            raise UserError(
                f"{self.report} cannot hold settings and report: name another file with --output or --report"
            )

    def run_and_write(self, run: Callable[[], TuneResult], build: TunedFileBuilder) -> TuneResult:
        """Run a tuning and write its files, also if the user stops it; return the result."""
        try:
            result, stopped = run(), False
        except Interrupted as interruption:
            result, stopped = interruption.result, True
        try:
            result = self._write_page(self._add_output(result, build))
        except KeyboardInterrupt:
            note = "stopped while the files were being written: run the same command again to write them"
            result, stopped = replace(result, notes=(*result.notes, note)), True
        if stopped:
            raise Interrupted(result)
        return result

    def _add_output(self, result: TuneResult, build: TunedFileBuilder) -> TuneResult:
        """Write the tuned file; if that fails, add a note, so that the result is not lost."""
        try:
            return self._write_output(result, build)
        except UserError as problem:
            return replace(result, notes=(*result.notes, f"the settings were not written: {problem}"))

    def _write_output(self, result: TuneResult, build: TunedFileBuilder) -> TuneResult:
        if self.output is None:
            return result
        if result.found_nothing:
            reason = (
                "nothing was compared"
                if result.verdict == NOT_MEASURED
                else "nothing better than the default was found and confirmed yet"
            )
            note = f"{self.output} was not written: {reason}"
            return replace(result, notes=(*result.notes, note))
        tuned, notes = build(result), result.notes
        replaced = _describe_replaced(self.output, tuned, is_confirmed=result.verdict != UNCONFIRMED)
        if replaced:
            notes = (*notes, f"{self.output} held {replaced}; a copy is in {_copy_aside(self.output)}")
        write_tuned(self.output, tuned)
        return replace(result, output=str(self.output), notes=notes)

    def _write_page(self, result: TuneResult) -> TuneResult:
        if self.report is None:
            return result
        try:
            return replace(result, report=write_report(self.report, result))
        except (UserError, OSError) as problem:
            return replace(result, notes=(*result.notes, f"the report was not written: {problem}"))


def write_report(path: Path, result: TuneResult) -> str:
    """Write a report of this result alone, without other tunings of its store; return its path."""
    from corewise.report.page import write_page
    from corewise.report.report_builder import build_report

    write_page(build_report([Path(result.store)], tunings=[result.key]), path)
    return str(path)


def _require_writable(path: Path, option: str) -> None:
    if path.is_dir() or not _can_create_files(path.absolute().parent):
        raise UserError(f"{path} cannot be written: name a file in a writable folder with {option}")
    if path.exists() and not os.access(path, os.W_OK):
        raise UserError(f"{path} exists and is not writable: name another file with {option}")


def _can_create_files(folder: Path) -> bool:
    """Return whether a file can be created in a folder, by creating one: permissions do not say it all."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _require_ours(path: Path) -> None:
    """Raise UserError if the tuned file would overwrite a file that no tuning wrote, like the script."""
    if not path.exists():
        return
    if not path.is_file():
        raise UserError(f"{path} is not a regular file: name another one with --output")
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.strip() and not text.startswith(HEADER.partition(".")[0]) and not _is_tuned(path):
        raise UserError(f"{path} exists and is not from `corewise tune`; name another file with --output")


def _require_page(path: Path) -> None:
    """Raise UserError if the report would overwrite a file that is not an HTML page."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        begins = file.read(PAGE_HEADER_BYTES).strip().lower()
    if begins and not begins.startswith((b"<!doctype html", b"<html")):
        raise UserError(
            f"{path} exists and is not an HTML page: it would be overwritten; name another file with --report"
        )


def _is_tuned(path: Path) -> bool:
    try:
        read_tuned(path)
    except UserError:
        return False
    return True


def _describe_replaced(path: Path, tuned: TunedSettings, *, is_confirmed: bool) -> str:
    """Describe existing contents that are worth a copy; return an empty text if there are none."""
    if not path.exists() or not path.read_bytes().strip():
        return ""
    try:
        old = read_tuned(path)
    except UserError:
        return "settings that were edited by hand"
    if old.subject != tuned.subject:
        return f"the settings of {shorten(str(old.subject), 80)}"
    if _select_work_params(old) != _select_work_params(tuned):
        return "the settings of different work with the same name"
    if not _is_same_machine_class(old.machine, tuned.machine):
        return f"the settings of another machine, {shorten(old.machine.hostname or old.machine.cpu_model, 80)}"
    return "the result of a finished tuning" if old.measured is not None and not is_confirmed else ""


def _select_work_params(tuned: TunedSettings) -> dict[str, Any]:
    params = tuned.params.items()
    return {name: value for name, value in params if name in WORK_PARAMETERS or name.startswith("args.")}


def _is_same_machine_class(one: MachineFingerprint, other: MachineFingerprint) -> bool:
    """Return whether CPU model and allocation are the same; name and memory may differ."""
    shapes = [(each.cpu_model, each.num_sockets, each.nodes) for each in (one, other)]
    return shapes[0] == shapes[1]


def _copy_aside(path: Path) -> Path:
    """Copy the file to `tuned.yaml.old`, with a number if that exists; return the path of the copy."""
    copy, number = path.with_name(f"{path.name}.old"), 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.old{number}")
    try:
        shutil.copy2(path, copy)
    except OSError as problem:
        reason = problem.strerror or problem
        raise UserError(f"{copy} cannot be written ({reason}): name another file with --output") from problem
    return copy
