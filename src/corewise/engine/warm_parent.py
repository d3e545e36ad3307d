"""Warm parents as the control side sees them: start, run a trial, kill."""

import json
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

from corewise.launcher.environment import inherited_environment
from corewise.launcher.local import serve_command
from corewise.spec.trial import RankResult, Trial, rank_result_from_json
from corewise.worker.channel import Channel
from corewise.worker.signals import signal_name

START_LIMIT_S = 180.0  # importing a framework from a slow network file system
ANSWER_GRACE_S = 10.0  # beyond the run's own limit, before the parent itself is taken for hung
LOG_TAIL_BYTES = 2000
MAX_PARENTS = 12  # kept warm at a time; each holds a framework in memory


@dataclass(frozen=True)
class ParentKey:
    """What all runs of one warm parent share."""

    python: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    runtime: str
    num_cpus: int
    cold: bool
    confined: bool

    @classmethod
    def of(cls, trial: Trial) -> "ParentKey":
        """The kind of parent a trial needs."""
        return cls(
            trial.python,
            tuple(sorted(trial.env.items())),
            str(trial.params["runtime"]),
            len(trial.ranks[0].cpus),
            trial.protocol.start == "fresh",
            trial.params["bind"] != "none",
        )


class ParentFailed(Exception):
    """The warm parent could not start or has died; its text is the reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class WarmParent:
    """One serving process of the measured side."""

    def __init__(self, key: ParentKey, cpus: Sequence[int], worker: Path, log_file: Path) -> None:
        self.key = key
        self.log_file = log_file
        words = serve_command(key.python, worker, runtime=key.runtime, cpus=cpus, cold=key.cold)
        env = {**inherited_environment(os.environ), **dict(key.env)}
        with open(log_file, "ab") as log:
            self.process = self._start(words, env, log)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno())
        self.warm_s: float | None = None

    @staticmethod
    def _start(words: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(
                words,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        except OSError as problem:
            raise ParentFailed("missing", f"cannot start {words[0]}: {problem.strerror}") from problem

    def wait_until_warm(self) -> None:
        """Return once the framework is imported; raises ParentFailed otherwise."""
        if self.warm_s is not None:
            return
        message = self._next(time.monotonic() + START_LIMIT_S, lambda _phase: None)
        if message["event"] == "broken":
            raise ParentFailed(str(message["kind"]), str(message["reason"]))
        self.warm_s = float(str(message["warm_s"]))

    def run(
        self, trial: Trial, trial_file: Path, out_dir: Path, on_phase: Callable[[str], None]
    ) -> list[RankResult]:
        """The results of one run of the trial, one per rank."""
        self.wait_until_warm()
        asked_at_ns = time.monotonic_ns()
        self.channel.send(cmd="run", trial=str(trial_file), out=str(out_dir), asked_at_ns=asked_at_ns)
        limit = time.monotonic() + trial.protocol.timeout_s + ANSWER_GRACE_S
        self._next(limit, on_phase)
        return [read_result(out_dir / f"rank-{rank}.json", rank) for rank in range(trial.num_ranks)]

    def hold(self, trial_file: Path, folder: Path) -> int:
        """The process id of the keeper of a new held run, whose named pipes lie in `folder`."""
        self.wait_until_warm()
        asked_at_ns = time.monotonic_ns()
        self.channel.send(cmd="hold", trial=str(trial_file), out=str(folder), asked_at_ns=asked_at_ns)
        message = self._next(time.monotonic() + START_LIMIT_S, lambda _phase: None)
        return int(str(message["pid"]))

    def _next(self, limit: float, on_phase: Callable[[str], None]) -> dict[str, object]:
        """The next message that is not a phase; sleeps in the kernel meanwhile."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel.read_fd, selectors.EVENT_READ)
            while True:
                left = limit - time.monotonic()
                if left <= 0:
                    self.kill()
                    raise ParentFailed("timeout", "the warm parent did not answer in time and was killed")
                if not selector.select(left):
                    continue
                for message in self.channel.receive_available():
                    if message["event"] != "phase":
                        return message
                    on_phase(str(message["phase"]))
                if self.channel.closed:
                    raise ParentFailed("crash", self._why_dead())

    def _why_dead(self) -> str:
        code = self.process.wait()
        how = signal_name(-code) if code < 0 else f"exit code {code}"
        tail = ""
        with suppress(OSError):
            tail = self.log_file.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        last = tail.splitlines()[-1] if tail else "it said nothing"
        return f"the warm parent ended ({how}): {last}"

    def close(self) -> None:
        """End the process, politely first."""
        self.channel.send(cmd="stop")
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_pipes()

    def kill(self) -> None:
        """End the process and every rank of it at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()  # ranks die with it: each asked the kernel for that
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def read_result(path: Path, rank: int) -> RankResult:
    """The rank's result, or a failure that says why there is none."""
    try:
        return rank_result_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as problem:
        return RankResult(status="failed", rank=rank, kind="crash", reason=f"no readable result: {problem}")


class ParentPool:
    """Warm parents kept for reuse, the least recently used one ended first."""

    def __init__(self, worker: Path, log_dir: Path, max_parents: int = MAX_PARENTS) -> None:
        self.worker, self.log_dir, self.max_parents = worker, log_dir, max_parents
        self._parents: dict[ParentKey, WarmParent] = {}
        self._num_started = 0

    def get(self, trial: Trial) -> WarmParent:
        """The warm parent for this trial, started if need be."""
        parent = self._started(trial)
        parent.wait_until_warm()
        return parent

    def warm(self, trials: Iterable[Trial]) -> None:
        """Have these trials' parents import their frameworks side by side; what fails is told by `get`."""
        kinds = {ParentKey.of(trial): trial for trial in trials}
        missing = [trial for key, trial in kinds.items() if key not in self._parents]
        parents: list[WarmParent] = []
        for trial in missing[: self.max_parents]:
            with suppress(ParentFailed):
                parents.append(self._started(trial))
        for parent in parents:
            try:
                parent.wait_until_warm()
            except ParentFailed:
                self._parents.pop(parent.key, None)
                parent.kill()

    def _started(self, trial: Trial) -> WarmParent:
        """The parent for this trial, warm or on its way."""
        key = ParentKey.of(trial)
        parent = self._parents.pop(key, None)
        if parent is None or parent.process.poll() is not None:
            while len(self._parents) >= self.max_parents:
                self._parents.pop(next(iter(self._parents))).close()
            self._num_started += 1
            log_file = self.log_dir / f"parent-{os.getpid()}-{self._num_started}.log"
            # Any rank's CPUs will do, for a rank takes its own: several that start at a time need not share.
            cpus = trial.ranks[self._num_started % trial.num_ranks].cpus if key.confined else ()
            parent = WarmParent(key, cpus, self.worker, log_file)
        self._parents[key] = parent
        return parent

    def has(self, trial: Trial) -> bool:
        """True when the trial's parent need not be started."""
        return ParentKey.of(trial) in self._parents

    def drop(self, trial: Trial) -> None:
        """End the parent of this trial, which has misbehaved."""
        parent = self._parents.pop(ParentKey.of(trial), None)
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
