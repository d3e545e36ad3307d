"""Warm parents on the control side: start one, run a trial in it, end it."""

import os
import selectors
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from corewise.launch.environment import strip_controlled_variables
from corewise.launch.supervision.supervised_command import SupervisedCommand
from corewise.launch.worker_commands import build_serve_command
from corewise.measured.parameters import Binding
from corewise.measured.trial import ONE_NODE, NodePart, RankResult, Trial, to_json
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.signal_names import name_signal
from corewise.run.rank_results import read_result

# Importing a framework from a slow network file system can take minutes.
START_LIMIT_S = 180.0
# A parent that does not answer this long after the time limit of the run counts as hung.
ANSWER_GRACE_S = 10.0
# A parent that is asked to end, or has crashed, gets this time.
CLOSE_LIMIT_S = 2.0
LOG_TAIL_BYTES = 2000
# What the ranks of a node say to those of the other nodes.
RELAYED_EVENTS = ("ready", "failed")
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
        try:
            with open(log_file, "ab") as log:
                self.process = SupervisedCommand(
                    command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
                )
        except BlockingIOError as problem:
            # The limit of processes is reached.
            raise ParentFailure("missing", f"cannot start {command[0]}: {problem.strerror}") from problem
        to_parent, from_parent = self.process.pipes
        self.channel = Channel(from_parent.fileno(), to_parent.fileno())
        self.warm_s: float | None = None

    def wait_until_warm(self) -> None:
        """Wait until the framework is imported; raises ParentFailure when that fails."""
        if self.warm_s is not None:
            return
        message = self._receive(time.monotonic() + START_LIMIT_S, lambda _phase: None)
        if message["event"] == "broken":
            raise ParentFailure(str(message["kind"]), str(message["reason"]))
        self.warm_s = float(str(message["warm_s"]))

    def run(
        self,
        trial: Trial,
        out_dir: Path,
        on_phase: Callable[[str], None],
        part: NodePart = ONE_NODE,
        relay: Channel | None = None,
    ) -> list[RankResult]:
        """Run the trial once, or its part of this node, and return one result per rank.

        The trial names the user's code. It travels over the pipe, because others may be able to write to the store.

        Args:
            relay: Of a trial on several nodes, the channel to the process that hears from all nodes. Messages of the
                ranks are passed on to it, and its messages to the ranks.
        """
        self.wait_until_warm()
        asked_at_ns = time.monotonic_ns()
        self.channel.send(cmd="run", trial=to_json(trial), out=str(out_dir), asked_at_ns=asked_at_ns, part=asdict(part))
        limit = time.monotonic() + trial.protocol.timeout_s + ANSWER_GRACE_S
        message = self._receive(limit, on_phase, relay)
        ranks = part.select_ranks(trial.num_ranks)
        results = [read_result(out_dir / f"rank-{rank}.json", rank) for rank in ranks]
        notes = describe_leftovers(message.get("leftovers", ()))
        return [replace(results[0], notes=(*results[0].notes, *notes)), *results[1:]]

    def start_held_run(self, trial: Trial, folder: Path) -> int:
        """Start a held run with named pipes in `folder`; return the process id of its keeper."""
        self.wait_until_warm()
        asked_at_ns = time.monotonic_ns()
        self.channel.send(cmd="hold", trial=to_json(trial), out=str(folder), asked_at_ns=asked_at_ns)
        message = self._receive(time.monotonic() + START_LIMIT_S, lambda _phase: None)
        return int(str(message["pid"]))

    def _receive(self, limit: float, on_phase: Callable[[str], None], relay: Channel | None = None) -> dict[str, Any]:
        """Return the next message that is neither a phase nor relayed; sleeps in the kernel meanwhile."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel.read_fd, selectors.EVENT_READ)
            if relay is not None:
                selector.register(relay.read_fd, selectors.EVENT_READ, relay)
                for message in relay.take_pending():
                    self.channel.send(**message)
            while True:
                left = limit - time.monotonic()
                if left <= 0:
                    self.kill()
                    raise ParentFailure("timeout", "the warm parent did not answer in time and was killed")
                readable = {key.fd for key, _ in selector.select(left)}
                if relay is not None and relay.read_fd in readable:
                    for message in relay.receive_available():
                        self.channel.send(**message)
                    if relay.closed:
                        self.kill()
                        raise ParentFailure("stopped", "the run was stopped")
                if self.channel.read_fd not in readable:
                    continue
                for message in self.channel.receive_available():
                    if message["event"] == "phase":
                        on_phase(str(message["phase"]))
                    elif message["event"] in RELAYED_EVENTS and relay is not None:
                        relay.send(**message)
                    else:
                        return message
                if self.channel.closed:
                    raise self._build_failure()

    def _build_failure(self) -> ParentFailure:
        """Build the failure of a process that has closed its pipe, which ends with it."""
        self.process.wait(CLOSE_LIMIT_S)
        self.process.end()
        end = self.process.read_end()
        if end.problem:
            return ParentFailure("missing", f"cannot start {self.key.python[0]}: {end.problem}")
        how = name_signal(-end.code) if end.code < 0 else f"exit code {end.code}"
        tail = ""
        with suppress(OSError):
            tail = self.log_file.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()
        last = tail.splitlines()[-1] if tail else "no output"
        return ParentFailure("crash", f"the warm parent ended ({how}): {last}")

    def close(self) -> None:
        """Ask the process to end; kill it if it does not."""
        self.channel.send(cmd="stop")
        self.process.wait(CLOSE_LIMIT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the process, its ranks, and everything that they have started."""
        self.process.end()
        for pipe in self.process.pipes:
            with suppress(OSError):
                pipe.close()


def describe_leftovers(names: Sequence[str]) -> tuple[str, ...]:
    """Describe the processes that a run left behind as a note; none if there were none."""
    if not names:
        return ()
    counted = ", ".join(f"{num} × {name}" for name, num in sorted(Counter(names).items()))
    return (f"the workload left processes behind, which were killed: {counted}",)


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
        if parent is None or parent.process.has_ended:
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
