"""Warm parents on the control side: start one, run a trial in it, end it."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from corewise.launch.environment import strip_controlled_variables
from corewise.launch.worker_commands import build_serve_command
from corewise.measured.parameters import Binding
from corewise.measured.trial import RankResult, Trial, to_json
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.signal_names import name_signal
from corewise.run.rank_results import read_result

# Importing a framework from a slow network file system can take minutes.
START_LIMIT_S = 180.0
# A parent that does not answer this long after the time limit of the run counts as hung.
ANSWER_GRACE_S = 10.0
LOG_TAIL_BYTES = 2000
# Each warm parent holds a framework in memory.
MAX_PARENTS = 12


@dataclass(frozen=True)
class ParentKey:
    """The properties that all runs of one warm parent share."""

    python: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    runtime: str
    num_cpus: int
    cold: bool
    confined: bool

    @classmethod
    def from_trial(cls, trial: Trial) -> "ParentKey":
        """Return the key of the parent that a trial needs."""
        return cls(
            trial.python,
            tuple(sorted(trial.env.items())),
            trial.params.runtime,
            len(trial.ranks[0].cpus),
            trial.protocol.start == "fresh",
            trial.params.bind != Binding.NONE,
        )


class ParentFailure(Exception):
    """The warm parent could not start or has died; the message is the reason."""

    def __init__(self, category: str, reason: str) -> None:
        super().__init__(reason)
        self.category = category


class WarmParent:
    """A process of the measured side that has imported its framework and runs trials on request."""

    def __init__(self, key: ParentKey, cpus: Sequence[int], worker: Path, log_file: Path) -> None:
        self.key = key
        self.log_file = log_file
        command = build_serve_command(key.python, worker, runtime=key.runtime, cpus=cpus, cold=key.cold)
        env = {**strip_controlled_variables(os.environ), **dict(key.env)}
        with open(log_file, "ab") as log:
            self.process = self._start(command, env, log)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno())
        self.warm_s: float | None = None

    @staticmethod
    def _start(command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        except OSError as problem:
            raise ParentFailure("missing", f"cannot start {command[0]}: {problem.strerror}") from problem

    def wait_until_warm(self) -> None:
        """Wait until the framework is imported; raises ParentFailure when that fails."""
        if self.warm_s is not None:
            return
        message = self._receive(time.monotonic() + START_LIMIT_S, lambda _phase: None)
        if message["event"] == "broken":
            raise ParentFailure(str(message["kind"]), str(message["reason"]))
        self.warm_s = float(str(message["warm_s"]))

    def run(self, trial: Trial, out_dir: Path, on_phase: Callable[[str], None]) -> list[RankResult]:
        """Run the trial once and return one result per rank.

        The trial names the user's code. It travels over the pipe, because others may be able to write to the store.
        """
        self.wait_until_warm()
        asked_at_ns = time.monotonic_ns()
        self.channel.send(cmd="run", trial=to_json(trial), out=str(out_dir), asked_at_ns=asked_at_ns)
        limit = time.monotonic() + trial.protocol.timeout_s + ANSWER_GRACE_S
        self._receive(limit, on_phase)
        return [read_result(out_dir / f"rank-{rank}.json", rank) for rank in range(trial.num_ranks)]

    def start_held_run(self, trial: Trial, folder: Path) -> int:
        """Start a held run with named pipes in `folder`; return the process id of its keeper."""
        self.wait_until_warm()
        asked_at_ns = time.monotonic_ns()
        self.channel.send(cmd="hold", trial=to_json(trial), out=str(folder), asked_at_ns=asked_at_ns)
        message = self._receive(time.monotonic() + START_LIMIT_S, lambda _phase: None)
        return int(str(message["pid"]))

    def _receive(self, limit: float, on_phase: Callable[[str], None]) -> dict[str, object]:
        """Return the next message that is not a phase; sleeps in the kernel meanwhile."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel.read_fd, selectors.EVENT_READ)
            while True:
                left = limit - time.monotonic()
                if left <= 0:
                    self.kill()
                    raise ParentFailure("timeout", "the warm parent did not answer in time and was killed")
                if not selector.select(left):
                    continue
                for message in self.channel.receive_available():
                    if message["event"] != "phase":
                        return message
                    on_phase(str(message["phase"]))
                if self.channel.closed:
                    raise ParentFailure("crash", self._explain_end())

    def _explain_end(self) -> str:
        code = self.process.wait()
        how = name_signal(-code) if code < 0 else f"exit code {code}"
        tail = ""
        with suppress(OSError):
            tail = self.log_file.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        last = tail.splitlines()[-1] if tail else "no output"
        return f"the warm parent ended ({how}): {last}"

    def close(self) -> None:
        """Ask the process to end; kill it if it does not."""
        self.channel.send(cmd="stop")
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_pipes()

    def kill(self) -> None:
        """Kill the process and all its ranks."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # Each rank has asked the kernel to die with its parent.
        self.process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class ParentPool:
    """Warm parents for reuse; the least recently used one is ended first."""

    def __init__(self, worker: Path, log_dir: Path, max_parents: int = MAX_PARENTS) -> None:
        self.worker, self.log_dir, self.max_parents = worker, log_dir, max_parents
        self._parents: dict[ParentKey, WarmParent] = {}
        self._num_started = 0

    def get(self, trial: Trial) -> WarmParent:
        """Return the warm parent for this trial, started if necessary."""
        parent = self._start_parent(trial)
        parent.wait_until_warm()
        return parent

    def warm(self, trials: Iterable[Trial]) -> None:
        """Start the parents of these trials in parallel; `get` reports those that fail."""
        needed = {ParentKey.from_trial(trial): trial for trial in trials}
        missing = [trial for key, trial in needed.items() if key not in self._parents]
        parents: list[WarmParent] = []
        for trial in missing[: self.max_parents]:
            with suppress(ParentFailure):
                parents.append(self._start_parent(trial))
        for parent in parents:
            try:
                parent.wait_until_warm()
            except ParentFailure:
                self._parents.pop(parent.key, None)
                parent.kill()

    def _start_parent(self, trial: Trial) -> WarmParent:
        """Return the parent for this trial, which may still be importing its framework."""
        key = ParentKey.from_trial(trial)
        parent = self._parents.pop(key, None)
        if parent is None or parent.process.poll() is not None:
            while len(self._parents) >= self.max_parents:
                self._parents.pop(next(iter(self._parents))).close()
            self._num_started += 1
            log_file = self.log_dir / f"parent-{os.getpid()}-{self._num_started}.log"
            # Parents may start on any rank's CPUs, since each rank is pinned later. Parents that start at the
            # same time use different ones.
            cpus = trial.ranks[self._num_started % trial.num_ranks].cpus if key.confined else ()
            parent = WarmParent(key, cpus, self.worker, log_file)
        self._parents[key] = parent
        return parent

    def has_parent(self, trial: Trial) -> bool:
        """Return True when the trial's parent is already started."""
        return ParentKey.from_trial(trial) in self._parents

    def drop(self, trial: Trial) -> None:
        """Kill the parent of this trial after a failure."""
        parent = self._parents.pop(ParentKey.from_trial(trial), None)
        if parent is not None:
            parent.kill()

    def close(self) -> None:
        for parent in self._parents.values():
            parent.close()
        self._parents.clear()

    def kill(self) -> None:
        for parent in self._parents.values():
            parent.kill()
        self._parents.clear()
