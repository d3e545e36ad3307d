"""The warm parent: imports a framework once, then forks the ranks of each run and watches over them.

Measured side: standard library and the runtime's framework only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import selectors
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Mapping, Optional

from corewise.machine import pinning
from corewise.runtimes.base import MissingPart, Runtime
from corewise.runtimes.host_memory import free_host_bytes
from corewise.runtimes.registry import find_runtime
from corewise.spec.trial import Trial, to_json, write_json_aside
from corewise.worker.channel import Channel
from corewise.worker.rank import RankPlan, failed, run_rank
from corewise.worker.sampling import decide
from corewise.worker.signals import signal_name
from corewise.worker.trial_folder import clear_abandoned, make_trial_folder

GRACE_S = 2.0  # what the others get to finish once one rank has failed
LOG_TAIL_BYTES = 4000
DISK_EXIT = 74  # sysexits.h: the result could not be written


class RankHandle:
    """A running rank as its parent sees it."""

    def __init__(self, rank: int, pid: int, channel: Channel, result_file: Path, log_file: Path) -> None:
        self.rank, self.pid, self.channel = rank, pid, channel
        self.result_file, self.log_file = result_file, log_file
        self.ready: Optional[Mapping[str, Any]] = None
        self.num_sampled = 0  # of a held run
        self.killed_for: Optional[tuple[str, str]] = None  # kind and reason
        self.wait_status: Optional[int] = None
        self.gone = False
        self.watched_fds: list[int] = []

    def open_watches(self, stack: contextlib.ExitStack) -> list[int]:
        """Descriptors that become readable when the rank speaks or dies.

        Death is watched for itself, since a grandchild may hold the pipe open.
        """
        self.watched_fds = [self.channel.read_fd]
        with contextlib.suppress(OSError, AttributeError):  # a kernel before 5.3
            death_fd = os.pidfd_open(self.pid)
            stack.callback(os.close, death_fd)
            self.watched_fds.append(death_fd)
        return self.watched_fds

    def kill(self, kind: str, reason: str) -> None:
        if self.wait_status is None and self.killed_for is None:
            self.killed_for = (kind, reason)
            _kill_group(self.pid)


class Zygote:
    """Forks ranks and answers for each of them with a result file."""

    def __init__(self, runtime_name: str, warm: bool) -> None:
        self.runtime_name = runtime_name
        self.runtime: Optional[Runtime] = None
        clear_abandoned()
        if warm:
            self.runtime = find_runtime(runtime_name)
            self.runtime.warm()
            gc.collect()
            gc.freeze()  # the children's collector leaves the shared pages alone

    def run(self, trial: Trial, out_dir: Path, asked_at_ns: int, control: Optional[Channel] = None) -> bool:
        """Run the trial once; a result file per rank. False when the control side has gone or said stop."""
        self.warm_for(trial)
        rendezvous = make_trial_folder()
        oom_kills = num_oom_kills()
        ranks = self.fork_ranks(trial, rendezvous, out_dir, asked_at_ns)
        go_on = False
        try:
            go_on = self._watch(ranks, trial, control)
        finally:
            for rank in ranks:
                if not go_on or not ends_within(rank, GRACE_S):
                    rank.kill("stopped", "the run was stopped")
                reap(rank)
                rank.channel.close()
            shutil.rmtree(rendezvous, ignore_errors=True)
        if go_on:
            for rank in ranks:
                if not rank.result_file.exists():
                    result = post_mortem(rank, num_oom_kills() > oom_kills)
                    write_json_aside(rank.result_file, to_json(result))
        return go_on

    def fork_ranks(
        self, trial: Trial, rendezvous: str, out_dir: Path, asked_at_ns: int, held: bool = False
    ) -> list[RankHandle]:
        """All ranks of a run, started."""
        free_bytes = free_host_bytes()
        return [
            self._fork(
                RankPlan(
                    trial, rank, rendezvous, out_dir / f"rank-{rank}.json", asked_at_ns, held, free_bytes
                )
            )
            for rank in range(trial.num_ranks)
        ]

    def warm_for(self, trial: Trial) -> None:
        """Import what trials like this one need besides."""
        if self.runtime is not None:
            with contextlib.suppress(ImportError, MissingPart):  # the rank meets it too, and says what
                self.runtime.warm_for(trial.params)

    def _fork(self, plan: RankPlan) -> RankHandle:
        to_child, to_parent = os.pipe(), os.pipe()
        log_file = plan.result_file.with_suffix(".log")
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(to_child[1])
                os.close(to_parent[0])
                pinning.die_with_parent(parent_pid)
                self._be_rank(plan, Channel(to_child[0], to_parent[1]), log_file)
                code = 0
            except OSError:
                code = DISK_EXIT
            finally:
                os._exit(code)
        os.close(to_child[0])
        os.close(to_parent[1])
        return RankHandle(plan.rank, pid, Channel(to_parent[0], to_child[1]), plan.result_file, log_file)

    def _be_rank(self, plan: RankPlan, channel: Channel, log_file: Path) -> None:
        os.setpgid(0, 0)
        pinning.set_oom_first()
        pinning.set_process_name(f"cw-rank-{plan.rank}")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(str(log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable(file=sys.__stderr__ or 2)
        run_rank(plan, self._own_runtime, channel)
        sys.stdout.flush()
        sys.stderr.flush()

    def _own_runtime(self) -> Runtime:
        if self.runtime is not None:
            return self.runtime
        runtime = find_runtime(self.runtime_name)
        runtime.warm()
        return runtime

    def _watch(self, ranks: list[RankHandle], trial: Trial, control: Optional[Channel]) -> bool:
        """True when all ranks have ended; False when the control side has gone or said stop."""
        deadline = time.monotonic() + trial.protocol.timeout_s
        grace_until: Optional[float] = None
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for rank in ranks:
                for fd in rank.open_watches(stack):
                    selector.register(fd, selectors.EVENT_READ, rank)
            if control is not None:
                selector.register(control.read_fd, selectors.EVENT_READ, control)
            while not all(rank.gone for rank in ranks):
                until = deadline if grace_until is None else min(deadline, grace_until)
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    if isinstance(key.data, Channel):
                        if any(m["cmd"] == "stop" for m in key.data.receive_available()) or key.data.closed:
                            return False
                        continue
                    rank = key.data
                    dead = key.fd != rank.channel.read_fd
                    if not rank.gone and (dead or self._hear(rank, ranks, trial, control)):
                        rank.gone = True
                        for fd in rank.watched_fds:
                            selector.unregister(fd)
                        if len(ranks) > 1 and not _succeeded(rank):
                            grace_until = grace_until or time.monotonic() + GRACE_S
                now = time.monotonic()
                if now >= deadline:
                    limit = f"no result within {trial.protocol.timeout_s:g} s (protocol.timeout_s); killed"
                    kill_all(ranks, "timeout", limit)
                    deadline = now + GRACE_S  # to see them die, not to spin
                elif grace_until is not None and now >= grace_until:
                    grace_until = None
                    kill_all(ranks, "peer", "another rank of this run failed")
        return True

    def _hear(
        self, rank: RankHandle, ranks: list[RankHandle], trial: Trial, control: Optional[Channel]
    ) -> bool:
        """True when the rank has gone."""
        for message in rank.channel.receive_available():
            if message["event"] == "ready":
                rank.ready = message
            elif message["event"] == "phase" and rank.rank == 0 and control is not None:
                control.send(event="phase", phase=message["phase"])
        if all(r.ready is not None for r in ranks):
            ready = [r.ready for r in ranks if r.ready is not None]
            go = decide(trial.protocol, [m["expected_s"] for m in ready], bool(ready[0]["independent"]))
            for other in ranks:
                other.channel.send(**go.message())
                other.ready = None
        return rank.channel.closed


def _succeeded(rank: RankHandle) -> bool:
    try:
        with open(rank.result_file, encoding="utf-8") as file:
            return bool(json.load(file)["status"] == "ok")
    except (OSError, ValueError, KeyError):
        return False


def kill_all(ranks: list[RankHandle], kind: str, reason: str) -> None:
    for rank in ranks:
        if not rank.gone:
            rank.kill(kind, reason)


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # a rank killed at birth may not lead its group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def ends_within(rank: RankHandle, limit_s: float) -> bool:
    """True when the rank, whose pipe is closed, has ended by itself."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        pid, status = os.waitpid(rank.pid, os.WNOHANG)
        if pid:
            rank.wait_status = status
            return True
        time.sleep(0.001)
    return False


def reap(rank: RankHandle) -> None:
    if rank.wait_status is None:
        _, rank.wait_status = os.waitpid(rank.pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.pid, signal.SIGKILL)  # loader workers it may have left


def num_oom_kills() -> int:
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def post_mortem(rank: RankHandle, oom_killed: bool) -> Any:
    tail = _log_tail(rank.log_file)
    if rank.killed_for is not None:
        return failed(rank.rank, rank.killed_for[0], rank.killed_for[1], tail)
    status = rank.wait_status or 0
    if os.WIFSIGNALED(status):
        name = signal_name(os.WTERMSIG(status))
        if name == "SIGKILL" and oom_killed:
            return failed(rank.rank, "memory", "out of memory: the kernel killed the rank", tail)
        return failed(rank.rank, "crash", f"the rank was killed by {name}", tail)
    code = os.WEXITSTATUS(status)
    if code == DISK_EXIT:
        return failed(rank.rank, "disk", "the rank could not write its result", tail)
    return failed(rank.rank, "exit", f"the rank ended with exit code {code} and left no result", tail)


def _log_tail(path: Path) -> str:
    try:
        data = path.read_bytes()[-LOG_TAIL_BYTES:]
    except OSError:
        return ""
    return data.decode("utf-8", "replace")
