"""The command line without its imports: a process that has them forks one for each command."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 120.0
SERVES = """
import json, os, sys
import corewise.cli.entry, corewise.cli.main, corewise.engine.run, corewise.spec.study, corewise.tuner.api
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["env"])
        os.sched_setaffinity(0, asked["cpus"])
        for number, path in enumerate((os.devnull, asked["out"], asked["err"])):
            os.dup2(os.open(path, os.O_RDWR), number)
        sys.argv = ["corewise", *asked["words"]]
        exec(asked["before"])
        corewise.cli.entry.main()
        sys.exit()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class WarmCommand:
    """Runs commands one after the other; `close` ends it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._place = Path(tempfile.mkdtemp())
        self._words: Sequence[str] = ()
        self._pid = 0

    def start(self, words: Sequence[str], folder: Path, env: Mapping[str, str], before: str = "") -> int:
        """The process of `corewise WORDS`, to be waited for; `before` is Python that it runs first."""
        for name in ("out", "err"):
            (self._place / name).write_text("")
        asked = {
            "words": words,
            "folder": str(folder),
            "env": dict(env),
            "cpus": sorted(os.sched_getaffinity(0)),
            "out": str(self._place / "out"),
            "err": str(self._place / "err"),
            "before": before,
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked).encode() + b"\n")
        self._words, self._pid = ("corewise", *words), self._number(PATIENCE_S)
        return self._pid

    def wait(self, timeout: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        """How the command that was started last ended; it is killed when the time is up."""
        try:
            code = self._number(timeout)
        except TimeoutError:
            os.kill(self._pid, signal.SIGKILL)
            self._number(PATIENCE_S)
            raise subprocess.TimeoutExpired(self._words, timeout, *self._printed()) from None
        return subprocess.CompletedProcess(self._words, code, *self._printed())

    def _printed(self) -> tuple[str, str]:
        return (self._place / "out").read_text(), (self._place / "err").read_text()

    def _number(self, within_s: float) -> int:
        """The number in the next line."""
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], within_s)[0]:
            raise TimeoutError
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate()
        shutil.rmtree(self._place)
