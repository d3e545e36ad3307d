"""One start of a script: its process, its progress, and the reason if it failed."""

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from corewise.launch.supervision.rank_start import suggest_fix
from corewise.launch.supervision.supervised_command import SupervisedCommand
from corewise.progress import PROGRESS_FILE
from corewise.tuning.scripts.output_check import PrintedNumber
from corewise.tuning.scripts.rate_source import FormatDetector, RateSource
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.throughput_parser import ESCAPES, LINE_ENDS, PrintedTexts, ProgressReader, compute_rate
from corewise.tuning.scripts.working_folder import FolderTree
from corewise.tuning.search.arena import Rejection

TAIL_BYTES = 4000
# What is shown of the end of the output.
NUM_LAST_LINES, MAX_LINE_CHARS = 8, 200
# The launcher itself and the supervisor of its ranks come before the processes of the script.
LAUNCHER_GENERATIONS = 2
NO_MEMORY = re.compile(r"MemoryError|bad_alloc|[Cc]annot allocate memory|can't allocate memory|out of memory")
NO_FILE = re.compile(r"FileNotFoundError|No such file or directory")


class ScriptStart:
    """A script that was started with a setting, in a new folder.

    `numbers` are those that --check found in its output; `progress` is all that it reported.
    """

    def __init__(
        self,
        script: Script,
        params: Mapping[str, Any],
        folder: Path,
        *,
        is_default: bool,
        tree: FolderTree | None = None,
        source: RateSource | None = None,
        detects: bool = False,
    ) -> None:
        self.script, self.folder, self.is_plain = script, folder, script.is_plain(is_default)
        printed = folder / "output"
        self.source = source
        self._reports = ProgressReader(folder / "progress")
        prefix = "[0] " if int(params.get("processes", 1)) > 1 else ""
        step_samples = script.count_step_samples(params)
        self.rates = source.open(printed, prefix, step_samples) if source is not None else None
        self._detector = (
            FormatDetector(printed, prefix, step_samples, is_distributed=script.is_distributed) if detects else None
        )
        self._checked = PrintedTexts(printed, script.check, prefix) if script.check else None
        self.numbers: list[PrintedNumber] = []
        self.progress: list[Any] = []
        # The names of processes that it left behind, known after its end.
        self.leftovers: Sequence[str] = ()
        work = script.workdir or folder / "work"
        if script.workdir is None:
            work.mkdir()
            if tree is not None:
                work = tree.build_mirror(work)
        env = {**os.environ, PROGRESS_FILE: str(folder / "progress"), "PYTHONUNBUFFERED": "1"}
        if work != script.folder:
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(script.folder), os.environ.get("PYTHONPATH"))))
        env.update(script.build_environment(params))
        command = script.build_command(params, is_default)
        if not self.is_plain:
            after = command.index("launch") + 1
            command[after:after] = ["--json", str(folder / "launched")]
        with open(printed, "wb") as out:
            self.process = SupervisedCommand(command, folder=work, env=env, stdout=out, stderr=out)

    def read_progress(self) -> list[Any]:
        """Return the progress since the last call."""
        # Ask before reading, so that no output is missed.
        has_ended = self.process.has_ended
        new: list[Any] = list(
            self._reports.read_new() if self.rates is None else self.rates.read_new(has_ended=has_ended)
        )
        if not new and not self.progress and self._detector is not None:
            found = self._detector.detect(has_ended=has_ended)
            if found is not None:
                self.source, self.rates, new = found.source, found.reader, list(found.progress)
                self._detector = None
        self.progress += new
        return new

    def has_numbers(self, num: int = 1) -> bool:
        """Return whether it has printed enough numbers for the check; True without a check."""
        if self._checked is not None:
            texts = self._checked.read_new_texts(has_ended=self.process.has_ended)
            self.numbers += [PrintedNumber.parse(text) for text in texts]
        return self._checked is None or len(self.numbers) >= num

    @property
    def missing_progress(self) -> str:
        """What is missing if the script reports no progress, for messages."""
        if self.source is None:
            return "no progress"
        return f"nothing that matches {self.source.option}" if self.source.option else f"no {self.source.name}"

    def compute_throughput(self, progress: list[Any]) -> float:
        """Compute the throughput from the progress of an interval; 0 if there is too little."""
        if len(progress) < 2:
            return 0.0
        return self.rates.compute_throughput(progress) if self.rates is not None else compute_rate(progress)

    def compute_total_throughput(self) -> float:
        """Compute the throughput of a run that has ended."""
        if self.rates is not None:
            return self.rates.compute_throughput(self.progress)
        return compute_rate(self.progress) or sum(report.samples for report in self.progress) / self.compute_seconds()

    def compute_seconds(self) -> float:
        """Return the duration of the run in seconds, without the overhead of the launcher."""
        if not self.is_plain:
            with suppress(ValueError, KeyError, TypeError):
                return max(float(rank["seconds"]) for rank in self._read_launched()["ranks"])
        return self.process.read_end().seconds

    def require_good_end(self) -> None:
        """Raise Rejection if it failed."""
        end = self.process.read_end()
        if end.problem:
            program = self.script.command[0]
            raise Rejection("missing", f"cannot start {program}: {end.problem}{suggest_fix(program)}")
        if end.code and self._is_out_of_memory(end.code):
            raise Rejection("memory", f"it ran out of memory{self.format_last_line()}")
        if end.code:
            how = f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
            raise Rejection("exit", f"it failed ({how}){self.format_last_line()}{self._explain_missing_file()}")

    def read_last_lines(self) -> list[str]:
        """Return the last printed lines, without those of the launcher."""
        lines = [line for line in _split_output(self._read_tail()) if not line.startswith("corewise: ")]
        return [line[:MAX_LINE_CHARS] for line in lines[-NUM_LAST_LINES:]]

    def format_last_line(self) -> str:
        """Format the last printed line as the end of a sentence."""
        lines = self.read_last_lines()
        return f": {lines[-1]}" if lines else ""

    def read_memory_bytes(self) -> float:
        """Return the sum of the peak memory of its processes, without the launcher."""
        generations = 0 if self.is_plain else LAUNCHER_GENERATIONS
        return float(sum(map(_read_peak_bytes, self.process.list_processes(generations))))

    def end(self) -> None:
        """Terminate all its processes and remove its folder."""
        self.process.end()
        self.leftovers = self._read_leftovers()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _read_leftovers(self) -> Sequence[str]:
        if self.is_plain:
            return self.process.read_end().leftovers
        # The launcher reports whole command lines.
        return [Path(line.split()[0]).name for line in self._read_launched().get("leftovers", ())]

    def _read_launched(self) -> dict[str, Any]:
        """Read the report of the launcher; empty if it was killed."""
        with suppress(OSError, ValueError):
            return dict(json.loads((self.folder / "launched").read_text()))
        return {}

    def _is_out_of_memory(self, code: int) -> bool:
        """Return whether it printed so, or was killed like the kernel does when memory runs out."""
        return code in (-signal.SIGKILL, 128 + signal.SIGKILL) or bool(NO_MEMORY.search(self._read_tail()))

    def _explain_missing_file(self) -> str:
        if not NO_FILE.search(self._read_tail()):
            return ""
        if self.script.workdir == self.script.folder:
            return ""
        where = self.script.workdir or f"a private mirror of {self.script.folder}"
        return (
            f"\nEach start runs in {where}. Paths that lead out of it, such as ../../data, are not found from there: "
            "--workdir here runs the script in your folder, --workdir DIR in another one."
        )

    def _read_tail(self) -> str:
        with suppress(OSError):
            return (self.folder / "output").read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        return ""


def _split_output(text: str) -> list[str]:
    """Split output into lines that are not empty, as a terminal shows them."""
    lines = ESCAPES.sub("", LINE_ENDS.sub("\n", text)).split("\n")
    return [line.rstrip() for line in lines if line.strip()]


def _read_peak_bytes(pid: int) -> int:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0
