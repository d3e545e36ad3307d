"""One start of a script: its process, what it tells, and what went wrong with it."""

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from corewise.launcher.kept import KeptCommand
from corewise.launcher.starting import how_to_start
from corewise.progress import PROGRESS_FILE
from corewise.tuner.arena import Rejected
from corewise.tuner.heard import Output, Printed, Reports, middle, rate
from corewise.tuner.script import Script
from corewise.tuner.script_check import Number

TAIL_BYTES = 2000
LAUNCHER_GENERATIONS = 2  # the process that was started, and the supervisor of its ranks
NO_MEMORY = re.compile(r"MemoryError|bad_alloc|[Cc]annot allocate memory|can't allocate memory|out of memory")
NO_FILE = re.compile(r"FileNotFoundError|No such file or directory")


class Start:
    """A script that was started with some setting, in a folder of its own."""

    def __init__(self, script: Script, params: Mapping[str, Any], folder: Path, *, is_default: bool) -> None:
        self.script, self.folder, self.is_plain = script, folder, script.is_plain(is_default)
        printed = folder / "output"
        self.output = Output(printed, script.pattern) if script.pattern else None
        self._reports = Reports(folder / "progress")
        only = "[0] " if int(params.get("processes", 1)) > 1 else ""
        self._checked = Printed(printed, script.check, only) if script.check else None
        self.numbers: list[Number] = []  # that --check found in what it printed
        self.heard: list[Any] = []  # all that it told of its progress
        work = folder / "work"
        work.mkdir()
        env = {**os.environ, PROGRESS_FILE: str(folder / "progress"), "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(script.folder), os.environ.get("PYTHONPATH"))))
        env.update(script.variables(params))
        words = script.started_as(params, is_default)
        if not self.is_plain:
            after = words.index("launch") + 1
            words[after:after] = ["--json", str(folder / "launched")]
        self.process = KeptCommand(words, folder=work, env=env, output=printed, told=folder / "ended")

    def listen(self) -> list[Any]:
        """The progress that it has told since the last call."""
        has_ended = self.process.has_ended  # before reading: nothing comes after it
        told = self.output.new(has_ended=has_ended) if self.output is not None else self._reports.new()
        new: list[Any] = list(told)
        self.heard += new
        return new

    def has_numbers(self, num: int = 1) -> bool:
        """Whether so many numbers for the check are there; True without a check."""
        if self._checked is not None:
            texts = self._checked.new_texts(has_ended=self.process.has_ended)
            self.numbers += [Number.of(text) for text in texts]
        return self._checked is None or len(self.numbers) >= num

    @property
    def awaited(self) -> str:
        """What it has not told, in words."""
        return "no progress" if self.output is None else "nothing that matches --throughput"

    def throughput_of(self, heard: list[Any]) -> float:
        """What a while of progress says; 0 where it is too little to say."""
        if len(heard) < 2:
            return 0.0
        return middle(heard) if self.output is not None else rate(heard)

    def throughput_of_all(self) -> float:
        """What all it told says, once it has ended."""
        if self.output is not None:
            return middle(self.heard) if self.heard else 0.0
        return rate(self.heard) or sum(report.samples for report in self.heard) / self.seconds()

    def seconds(self) -> float:
        """From its first instruction to its end, without what a launcher does before and after."""
        if not self.is_plain:
            with suppress(OSError, ValueError, KeyError):
                launched = json.loads((self.folder / "launched").read_text())
                return max(float(rank["seconds"]) for rank in launched["ranks"])
        return self.process.how_it_ended().seconds

    def require_good_end(self) -> None:
        """Raises Rejected when it ended badly."""
        end = self.process.how_it_ended()
        if end.problem:
            word = self.script.words[0]
            raise Rejected("missing", f"cannot start {word}: {end.problem}{how_to_start(word)}")
        if end.code and self._has_no_memory(end.code):
            raise Rejected("memory", f"it ran out of memory{self.last_line()}")
        if end.code:
            how = f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
            raise Rejected("exit", f"it failed ({how}){self.last_line()}{self._where_files_are()}")

    def last_line(self) -> str:
        """What it printed last, as the end of a sentence."""
        lines = [line for line in self._tail().splitlines() if not line.startswith("corewise: ")]
        return f": {lines[-1]}" if lines else ""

    def memory_bytes(self) -> float:
        """The most that each of its processes has had in memory, added up; not the launcher's own."""
        generations = 0 if self.is_plain else LAUNCHER_GENERATIONS
        return float(sum(map(_peak_bytes, self.process.processes(generations))))

    def end(self) -> None:
        """End it with all that it started, and forget what it wrote."""
        self.process.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _has_no_memory(self, code: int) -> bool:
        """Whether it says so itself, or was killed as the kernel kills when memory runs out."""
        return code in (-signal.SIGKILL, 128 + signal.SIGKILL) or bool(NO_MEMORY.search(self._tail()))

    def _where_files_are(self) -> str:
        if not NO_FILE.search(self._tail()):
            return ""
        return (
            f"\nEach start works in a new folder of its own, not in {self.script.folder}: let the script "
            "open files by absolute paths, or name them in the command (words that name a file here, also "
            "--option=FILE, are made absolute)"
        )

    def _tail(self) -> str:
        with suppress(OSError):
            return (self.folder / "output").read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        return ""


def _peak_bytes(pid: int) -> int:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0
