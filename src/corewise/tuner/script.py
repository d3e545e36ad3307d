"""An untouched script in the arena: started by the launcher, stopped between samplings."""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.launcher.descendants import descendants, read_parents, signal_all
from corewise.launcher.local import launch_command
from corewise.launcher.ranks import OUTSIDE_DEFAULTS
from corewise.progress import LOADER_WORKERS, PROGRESS_FILE
from corewise.tuner.arena import Rejected, Sampling
from corewise.tuner.heard import MIN_REPORTS, Output, Reports, middle, rate
from corewise.tuner.space import Setting, Space

SAMPLE_S = 1.0
LOOK_EVERY_S = 0.02
END_LIMIT_S = 15.0
TAIL_BYTES = 2000


@dataclass(frozen=True)
class Script:
    """A command as the user typed it, and where."""

    words: tuple[str, ...]
    folder: Path
    pattern: re.Pattern[str] | None = None
    batch: int | None = None  # of all processes, for {batch_per_rank}

    def filled(self, params: Mapping[str, Any]) -> list[str]:
        """The words with their placeholders filled in."""
        values = {"loader_workers": str(params.get("loader_workers", 0))}
        if self.batch is not None:
            values["batch_per_rank"] = str(self.batch // int(params["processes"]))
        return [re.sub(r"\{(\w+)\}", lambda m: values.get(m[1], m[0]), word) for word in self.words]

    def started_as(self, params: Mapping[str, Any], is_default: bool) -> list[str]:
        """The words that start it with these parameters; the default is the command and nothing else."""
        words = [self._found(word) for word in self.filled(params)]
        if is_default:
            return words
        outside = {name: params[name] for name in OUTSIDE_DEFAULTS if name in params}
        return [sys.executable, "-m", *launch_command(outside, words)]

    def _found(self, word: str) -> str:
        """The word, made absolute where it names a file here: each start has a folder of its own."""
        beside = self.folder / word
        return str(beside) if word and not word.startswith(("/", "-")) and beside.exists() else word


class ScriptArena:
    """Starts scripts, each in a folder of its own; `close` leaves no process behind."""

    def __init__(self, script: Script, space: Space, folder: Path) -> None:
        self.script, self.space, self.folder = script, space, folder
        self.by_clock = False  # it neither reports nor prints: whole runs are timed
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

    def begin(self) -> None:
        """Start it and wait for its first progress, unless it is timed by the clock."""
        began = time.monotonic()
        if not self.arena.by_clock:
            self._start()
            self._until_heard()
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
        self._stop()
        if throughput <= 0:
            raise Rejected("error", "it told no progress before it ended; let it run longer")
        return Sampling(throughput, 1 / throughput)

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
        while not self._heard():
            if self.process.poll() is not None:
                if self._heard():
                    return
                self._require_good_end()
                if self.output is not None:
                    raise Rejected("error", "it ended and printed nothing that matches --throughput")
                if self.setting != self.arena.space.default:
                    raise Rejected("error", "it ended without progress, as the default did not")
                self.arena.by_clock = True
                return
            if time.monotonic() > until:
                raise Rejected(
                    "timeout", f"no progress within {self.limit_s:.0f} s; killed{self._last_line()}"
                )
            time.sleep(LOOK_EVERY_S)

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
        self._end()
        return Sampling(1 / wall_s, wall_s)

    def _require_good_end(self) -> None:
        assert self.process is not None
        code = self.process.returncode
        if code:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise Rejected("exit", f"it failed ({how}){self._last_line()}")

    def _last_line(self) -> str:
        with suppress(OSError):
            tail = (self.folder / "output").read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip()
            if tail:
                return f": {tail.splitlines()[-1]}"
        return ""

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
        self.process = None
        shutil.rmtree(self.folder, ignore_errors=True)


def placeholders(words: Sequence[str]) -> set[str]:
    """The names in braces that a command has."""
    return {name for word in words for name in re.findall(r"\{(\w+)\}", word)}
