"""Scripts in the arena: started by the launcher, stopped between samplings."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from corewise.launcher.descendants import descendants, read_parents, signal_all
from corewise.progress import LOADER_WORKERS, PROGRESS_FILE
from corewise.tuner.arena import Rejected, Sampling
from corewise.tuner.heard import MIN_REPORTS, Output, Printed, Reports, middle, rate
from corewise.tuner.script import Script
from corewise.tuner.script_check import Number, Reference
from corewise.tuner.space import Setting, Space

SAMPLE_S = 1.0
LOOK_EVERY_S = 0.02
END_LIMIT_S = 15.0
TAIL_BYTES = 2000
NO_PROGRESS = ("timeout", "no progress")
NO_MEMORY = re.compile(r"MemoryError|bad_alloc|[Cc]annot allocate memory|can't allocate memory|out of memory")


class ScriptArena:
    """Starts scripts, each in a folder of its own; `close` leaves no process behind."""

    def __init__(self, script: Script, space: Space, folder: Path) -> None:
        self.script, self.space, self.folder = script, space, folder
        self.by_clock = False  # it neither reports nor prints: whole runs are timed
        self.reference = Reference()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._numbers = itertools.count()
        self.alive: list[ScriptEntrant] = []

    def now(self) -> float:
        return time.monotonic()

    def expect(self, settings: Iterable[Setting]) -> None:
        """Nothing: a script is started anew each time."""

    def enter(self, setting: Setting, limit_s: float) -> "ScriptEntrant":
        """The started script, once it has told its first progress; raises Rejected when it does not."""
        entrant = ScriptEntrant(self, setting, limit_s)
        self.alive.append(entrant)
        try:
            entrant.begin()
        except BaseException:
            entrant.leave()
            raise
        return entrant

    def compare_defaults(self, limit_s: float) -> float:
        """By how much the numbers of a second start of the default differ from the first one's."""
        second = ScriptEntrant(self, self.space.default, limit_s)
        self.alive.append(second)
        try:
            if self.by_clock:
                second.sample()
            else:
                second.begin()
            return self.reference.error(second.numbers)
        finally:
            second.leave()

    def next_folder(self) -> Path:
        folder = self.folder / f"start-{next(self._numbers)}"
        folder.mkdir()
        return folder

    def close(self) -> None:
        for entrant in list(self.alive):
            entrant.leave()
        shutil.rmtree(self.folder, ignore_errors=True)


class ScriptEntrant:
    """One setting of a script; started again when it has come to its end."""

    def __init__(self, arena: ScriptArena, setting: Setting, limit_s: float) -> None:
        self.arena, self.setting, self.limit_s = arena, setting, limit_s
        self.start_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.reports: Reports | None = None
        self.output: Output | None = None
        self.checked: Printed | None = None
        self.numbers: list[Number] = []  # that --check found in what it printed

    def begin(self) -> None:
        """Start it and wait for its first progress, unless it is timed by the clock."""
        began = time.monotonic()
        if not self.arena.by_clock:
            self._start()
            self._until_heard()
            self._judge_numbers()
            self._stop()
        self.start_s = time.monotonic() - began

    def sample(self) -> Sampling:
        """The throughput of a short while, or of a whole run."""
        if self.arena.by_clock:
            return self._whole_run()
        if self.process is None or self.process.poll() is not None:
            self._end()
            self.begin()
        self._continue()
        throughput = self._listened()
        memory_bytes = self._memory_bytes()
        self._stop()
        if throughput <= 0:
            raise Rejected("error", "it told no progress before it ended; let it run longer")
        return Sampling(throughput, 1 / throughput, self._judge_numbers(), memory_bytes)

    def leave(self) -> None:
        """End it and all that it started."""
        self._end()
        with suppress(ValueError):
            self.arena.alive.remove(self)

    def _start(self) -> None:
        script, params = self.arena.script, self.arena.space.params(self.setting)
        self.folder = self.arena.next_folder()
        env = {**os.environ, PROGRESS_FILE: str(self.folder / "progress"), "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(script.folder), os.environ.get("PYTHONPATH"))))
        if "loader_workers" in params:
            env[LOADER_WORKERS] = str(params["loader_workers"])
        words = script.started_as(params, self.setting == self.arena.space.default)
        self.output = Output(self.folder / "output", script.pattern) if script.pattern else None
        self.reports = Reports(self.folder / "progress")
        only = "[0] " if self._num_processes > 1 else ""
        self.checked = Printed(self.folder / "output", script.check, only) if script.check else None
        self.numbers = []
        try:
            with open(self.folder / "output", "wb") as out:
                self.process = subprocess.Popen(
                    words,
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as problem:
            raise Rejected("missing", f"cannot start {words[0]}: {problem.strerror}") from problem

    def _heard(self) -> list[Any]:
        source = self.output or self.reports
        return list(source.new()) if source is not None else []

    def _until_heard(self) -> None:
        """Return at the first progress; a script that ends well without any is timed by the clock."""
        assert self.process is not None
        until = time.monotonic() + self.limit_s
        has_progress = False
        while True:
            ended = self.process.poll() is not None  # before looking: nothing comes after it
            has_progress = bool(self._heard()) or has_progress
            if has_progress and self._has_numbers():
                return
            if ended:
                self._require_good_end()
                if has_progress:
                    raise Rejected("check", "it ended and printed nothing that matches --check")
                if self.output is not None:
                    raise Rejected("error", "it ended and printed nothing that matches --throughput")
                if self.setting != self.arena.space.default:
                    raise Rejected("error", "it ended without progress, as the default did not")
                self.arena.by_clock = True
                return
            if time.monotonic() > until:
                kind, what = ("check", "nothing that matches --check") if has_progress else NO_PROGRESS
                raise Rejected(kind, f"{what} within {self.limit_s:.0f} s; killed{self._last_line()}")
            time.sleep(LOOK_EVERY_S)

    def _has_numbers(self) -> bool:
        """Whether all is there that the check needs."""
        if self.checked is not None:
            self.numbers += [Number.of(text) for text in self.checked.new_texts()]
        return self.checked is None or bool(self.numbers)

    def _judge_numbers(self) -> float:
        """The error of the numbers printed so far; those of the default are what others are held to."""
        if not self._has_numbers():
            raise Rejected("check", "it printed nothing that matches --check")
        reference = self.arena.reference
        if self.setting != self.arena.space.default:
            return reference.judge(self.numbers, self._num_processes)
        if len(self.numbers) > len(reference.numbers) and reference.error(self.numbers) <= reference.scatter:
            reference.numbers = list(self.numbers)
        return 0.0

    @property
    def _num_processes(self) -> int:
        return int(self.arena.space.params(self.setting).get("processes", 1))

    def _listened(self) -> float:
        assert self.process is not None
        heard: list[Any] = []
        began = time.monotonic()
        while len(heard) < MIN_REPORTS or time.monotonic() - began < SAMPLE_S:
            ended = self.process.poll() is not None
            heard += self._heard()
            if ended:
                self._require_good_end()
                break
            if time.monotonic() - began > self.limit_s:
                raise Rejected(
                    "timeout", f"no progress within {self.limit_s:.0f} s; killed{self._last_line()}"
                )
            time.sleep(LOOK_EVERY_S)
        if len(heard) < 2:
            return 0.0
        return middle(heard) if self.output is not None else rate(heard)

    def _whole_run(self) -> Sampling:
        self._end()
        began = time.monotonic()
        self._start()
        assert self.process is not None
        try:
            self.process.wait(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            self._end()
            raise Rejected("timeout", f"it did not end within {self.limit_s:.0f} s; killed") from None
        wall_s = time.monotonic() - began
        self._require_good_end()
        error = self._judge_numbers()
        self._end()
        return Sampling(1 / wall_s, wall_s, error)

    def _require_good_end(self) -> None:
        assert self.process is not None
        code = self.process.returncode
        if code and self._has_no_memory(code):
            raise Rejected("memory", f"it ran out of memory{self._last_line()}")
        if code:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise Rejected("exit", f"it failed ({how}){self._last_line()}")

    def _has_no_memory(self, code: int) -> bool:
        """Whether it says so itself, or was killed as the kernel kills when memory runs out."""
        return code in (-signal.SIGKILL, 128 + signal.SIGKILL) or bool(NO_MEMORY.search(self._tail()))

    def _last_line(self) -> str:
        lines = [line for line in self._tail().splitlines() if not line.startswith("corewise launch:")]
        return f": {lines[-1]}" if lines else ""

    def _tail(self) -> str:
        with suppress(OSError):
            return (self.folder / "output").read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        return ""

    def _memory_bytes(self) -> float:
        """The most that each of its processes has had in memory, added up; the launcher's own aside."""
        is_launched = self.setting != self.arena.space.default
        return float(sum(map(_peak_bytes, self._below()[1 if is_launched else 0 :])))

    def _below(self) -> list[int]:
        assert self.process is not None
        return [self.process.pid, *descendants(self.process.pid, read_parents())]

    def _stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            signal_all(reversed(self._below()), signal.SIGSTOP)  # children first: no parent sees them stop

    def _continue(self) -> None:
        self._heard()  # what came before
        signal_all(self._below(), signal.SIGCONT)

    def _end(self) -> None:
        """Kill what it started, and it; a launcher cleans up after its ranks first."""
        if self.process is None:
            return
        if self.process.poll() is None:
            below = self._below()
            is_launched = self.setting != self.arena.space.default
            signal_all(reversed(below[1:] if is_launched else below), signal.SIGKILL)
            signal_all(below[:1], signal.SIGCONT)
            try:  # a launcher without ranks ends, once nothing is left of them
                self.process.wait(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                signal_all(self._below(), signal.SIGKILL)
                self.process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        signal_all(_marked(f"{PROGRESS_FILE}={self.folder}/"), signal.SIGKILL)  # daemons have left the tree
        self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _peak_bytes(pid: int) -> int:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def _marked(variable: str) -> list[int]:
    """The processes whose environment has a variable that begins so."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if b"\0" + variable.encode() in b"\0" + Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
    return found
