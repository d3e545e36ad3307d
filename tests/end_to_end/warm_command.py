"""Runs commands without import time: a process with all imports forks one process per command."""

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
SERVER = """
import json, os, sys
import corewise.cli.app, corewise.cli.main, corewise.run.study_runner, corewise.study.study, corewise.tuning.api
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["env"])
        os.sched_setaffinity(0, request["cpus"])
        for number, path in enumerate((os.devnull, request["out"], request["err"])):
            os.dup2(os.open(path, os.O_RDWR), number)
        sys.argv = ["corewise", *request["arguments"]]
        exec(request["before"])
        corewise.cli.main.main()
        sys.exit()
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class WarmCommand:
    """Runs one command at a time; `close` ends the server."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._folder = Path(tempfile.mkdtemp())
        self._arguments: Sequence[str] = ()
        self._pid = 0

    def start(self, arguments: Sequence[str], folder: Path, env: Mapping[str, str], before: str = "") -> int:
        """Start `corewise ARGUMENTS` and return its pid; `before` is Python code that runs first."""
        for name in ("out", "err"):
            (self._folder / name).write_text("")
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "env": dict(env),
            "cpus": sorted(os.sched_getaffinity(0)),
            "out": str(self._folder / "out"),
            "err": str(self._folder / "err"),
            "before": before,
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request).encode() + b"\n")
        self._arguments, self._pid = ("corewise", *arguments), self._read_number(PATIENCE_S)
        return self._pid

    def wait(self, timeout: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        """Wait for the command that was started last; kill it when the time is up."""
        try:
            code = self._read_number(timeout)
        except TimeoutError:
            os.kill(self._pid, signal.SIGKILL)
            self._read_number(PATIENCE_S)
            raise subprocess.TimeoutExpired(self._arguments, timeout, *self._read_output()) from None
        return subprocess.CompletedProcess(self._arguments, code, *self._read_output())

    def _read_output(self) -> tuple[str, str]:
        return (self._folder / "out").read_text(), (self._folder / "err").read_text()

    def _read_number(self, within_s: float) -> int:
        """Read the number in the next line."""
        assert self._server.stdout is not None
        if not select.select([self._server.stdout], [], [], within_s)[0]:
            raise TimeoutError
        return int(self._server.stdout.readline())

    def close(self) -> None:
        self._server.communicate()
        shutil.rmtree(self._folder)
