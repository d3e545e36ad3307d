"""The warm parent: imports a framework once, then forks the ranks of each run and supervises them.

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
from typing import Any, Mapping, Optional, Sequence

from corewise import process_control
from corewise.measured.runtimes.base import MissingPart, Runtime
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes
from corewise.measured.runtimes.registry import find_runtime
from corewise.measured.trial import ONE_NODE, NodePart, Trial, to_json, write_json_atomically
from corewise.measured.worker.control_pipe import Channel
from corewise.measured.worker.descendants import end_leftovers, find_children
from corewise.measured.worker.rank import RankPlan, build_failure, run_rank
from corewise.measured.worker.sampling import plan_sampling
from corewise.measured.worker.signal_names import name_signal
from corewise.measured.workloads.custom import load_imports
from corewise.owned_files import build_owned_prefix, remove_abandoned
from corewise.trusted_paths import create_private_folder

# Once one rank has failed, the others have this long to finish.
GRACE_PERIOD_S = 2.0
LOG_TAIL_BYTES = 4000
# The innermost frame of a stack comes first, so a log with stacks needs a longer tail.
STACK_TAIL_BYTES = 24_000
# The signal on which a rank writes the stacks of its threads to its log and ends, and how long that may take. Its
# default action leaves no core file.
STACK_SIGNAL = signal.SIGUSR2
MAX_STACK_S, STACK_POLL_S = 2.0, 0.02
# Ranks killed for these reasons may hang.
HANGING = ("timeout", "peer")
# The exit code of a rank that could not write its result (EX_IOERR of sysexits.h).
DISK_EXIT = 74


class RankHandle:
    """A running rank, as its parent sees it; `killed_for` holds the category and reason of a failure."""

    def __init__(self, rank: int, pid: int, channel: Channel, result_file: Path, log_file: Path) -> None:
        self.rank, self.pid, self.channel = rank, pid, channel
        self.result_file, self.log_file = result_file, log_file
        self.ready: Optional[Mapping[str, Any]] = None
        self.num_sampled = 0
        self.killed_for: Optional[tuple[str, str]] = None
        self.wait_status: Optional[int] = None
        self.gone = False
        self.watched_fds: list[int] = []

    def open_watches(self, stack: contextlib.ExitStack) -> list[int]:
        """Return descriptors that become readable when the rank sends a message or ends.

        A closed pipe is not enough to notice its end, because a grandchild may hold the pipe open.
        """
        self.watched_fds = [self.channel.read_fd]
        # Kernels before 5.3 have no pidfd_open.
        with contextlib.suppress(OSError, AttributeError):
            death_fd = os.pidfd_open(self.pid)
            stack.callback(os.close, death_fd)
            self.watched_fds.append(death_fd)
        return self.watched_fds

    def request_stacks(self) -> None:
        """Let the rank write the stacks of its threads to its log and end, also if it is stopped."""
        for number in (STACK_SIGNAL, signal.SIGCONT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self, category: str, reason: str) -> None:
        if self.wait_status is None and self.killed_for is None:
            self.killed_for = (category, reason)
            _kill_group(self.pid)


class Zygote:
    """Forks ranks and ensures that each of them has a result file."""

    def __init__(self, runtime_name: str, warm: bool) -> None:
        self.runtime_name = runtime_name
        self.runtime: Optional[Runtime] = None
        remove_abandoned()
        if warm:
            self.runtime = find_runtime(runtime_name)
            self.runtime.warm()
            # Frozen objects keep the garbage collector of the children away from shared pages.
            gc.collect()
            gc.freeze()

    def run(
        self,
        trial: Trial,
        out_dir: Path,
        asked_at_ns: int,
        control: Optional[Channel] = None,
        part: NodePart = ONE_NODE,
    ) -> Optional[Sequence[str]]:
        """Run the trial once, with a result file per rank, and kill the processes that it leaves behind.

        Of a trial on several nodes, only the part of this node is run. Sampling then starts on a message of the
        control side, which hears from all nodes.

        Returns:
            The names of those processes, or None if the control side stops or ends.
        """
        self.warm_for(trial)
        earlier_children = find_children()
        rendezvous = create_rendezvous_folder()
        oom_kills = count_oom_kills()
        ranks = self.start_ranks(trial, rendezvous, out_dir, asked_at_ns, part=part)
        has_ended = False
        try:
            has_ended = self._watch(ranks, trial, control, part)
        finally:
            for rank in ranks:
                if not has_ended or not wait_for_end(rank, GRACE_PERIOD_S):
                    rank.kill("stopped", "the run was stopped")
                reap(rank)
                rank.channel.close()
            leftovers = end_leftovers(spared=earlier_children)
            shutil.rmtree(rendezvous, ignore_errors=True)
        if not has_ended:
            return None
        for rank in ranks:
            if not rank.result_file.exists():
                result = explain_death(rank, count_oom_kills() > oom_kills)
                write_json_atomically(rank.result_file, to_json(result))
        return leftovers

    def start_ranks(
        self,
        trial: Trial,
        rendezvous: str,
        out_dir: Path,
        asked_at_ns: int,
        held: bool = False,
        part: NodePart = ONE_NODE,
    ) -> list[RankHandle]:
        """Start the ranks of a run on this node."""
        free_bytes = read_free_host_bytes()
        return [
            self._start_rank(
                RankPlan(trial, rank, rendezvous, out_dir / f"rank-{rank}.json", asked_at_ns, held, free_bytes, part)
            )
            for rank in part.select_ranks(trial.num_ranks)
        ]

    def warm_for(self, trial: Trial) -> None:
        """Import what trials like this one also need."""
        if self.runtime is not None:
            # The rank meets the same error and reports it.
            with contextlib.suppress(ImportError, MissingPart):
                self.runtime.warm_for(trial.params)
            if trial.warms_imports:
                load_imports(trial.imports)

    def _start_rank(self, plan: RankPlan) -> RankHandle:
        to_child, to_parent = os.pipe(), os.pipe()
        log_file = plan.result_file.with_suffix(".log")
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(to_child[1])
                os.close(to_parent[0])
                process_control.end_with_parent(parent_pid)
                self._run_child(plan, Channel(to_child[0], to_parent[1]), log_file)
                code = 0
            except OSError:
                code = DISK_EXIT
            finally:
                os._exit(code)
        os.close(to_child[0])
        os.close(to_parent[1])
        return RankHandle(plan.rank, pid, Channel(to_parent[0], to_child[1]), plan.result_file, log_file)

    def _run_child(self, plan: RankPlan, channel: Channel, log_file: Path) -> None:
        os.setpgid(0, 0)
        process_control.set_oom_first()
        process_control.set_process_name(f"cw-rank-{plan.rank}")
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(str(log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable(file=sys.__stderr__ or 2)
        faulthandler.register(STACK_SIGNAL, file=sys.__stderr__ or 2, all_threads=True, chain=True)
        run_rank(plan, self._load_runtime, channel)
        sys.stdout.flush()
        sys.stderr.flush()

    def _load_runtime(self) -> Runtime:
        if self.runtime is not None:
            return self.runtime
        runtime = find_runtime(self.runtime_name)
        runtime.warm()
        return runtime

    def _watch(self, ranks: list[RankHandle], trial: Trial, control: Optional[Channel], part: NodePart) -> bool:
        """Wait for all ranks; return False if the control side stops or ends."""
        deadline = time.monotonic() + trial.protocol.timeout_s
        grace_until: Optional[float] = None
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for rank in ranks:
                for fd in rank.open_watches(stack):
                    selector.register(fd, selectors.EVENT_READ, rank)
            messages: list[dict[str, Any]] = []
            if control is not None:
                selector.register(control.read_fd, selectors.EVENT_READ, control)
                messages = control.take_pending()
            while not all(rank.gone for rank in ranks):
                if messages and _obey(messages, ranks):
                    grace_until = grace_until or time.monotonic() + GRACE_PERIOD_S
                messages = []
                until = deadline if grace_until is None else min(deadline, grace_until)
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    if isinstance(key.data, Channel):
                        messages = key.data.receive_available()
                        if any(m["cmd"] == "stop" for m in messages) or key.data.closed:
                            return False
                        continue
                    rank = key.data
                    dead = key.fd != rank.channel.read_fd
                    if not rank.gone and (dead or self._handle_messages(rank, ranks, trial, control, part)):
                        rank.gone = True
                        for fd in rank.watched_fds:
                            selector.unregister(fd)
                        if trial.num_ranks > 1 and not _has_succeeded(rank):
                            grace_until = grace_until or time.monotonic() + GRACE_PERIOD_S
                            if part.num_nodes > 1 and control is not None:
                                control.send(event="failed", rank=rank.rank)
                now = time.monotonic()
                if now >= deadline:
                    limit = f"no result within {trial.protocol.timeout_s:g} s (protocol.timeout_s); killed"
                    kill_all(ranks, "timeout", limit)
                    # Wait for the ranks to end without spinning.
                    deadline = now + GRACE_PERIOD_S
                elif grace_until is not None and now >= grace_until:
                    grace_until = None
                    kill_all(ranks, "peer", "another rank of this run failed")
        return True

    def _handle_messages(
        self, rank: RankHandle, ranks: list[RankHandle], trial: Trial, control: Optional[Channel], part: NodePart
    ) -> bool:
        """Handle the messages of a rank; return whether it has ended."""
        for message in rank.channel.receive_available():
            if message["event"] == "ready":
                rank.ready = message
            elif message["event"] == "phase" and rank.rank == 0 and control is not None:
                control.send(event="phase", phase=message["phase"])
        if all(r.ready is not None for r in ranks):
            ready = [r.ready for r in ranks if r.ready is not None]
            expected_s, independent = [m["expected_s"] for m in ready], bool(ready[0]["independent"])
            for each in ranks:
                each.ready = None
            if part.num_nodes > 1 and control is not None:
                control.send(event="ready", expected_s=expected_s, independent=independent)
            else:
                _start_sampling(ranks, plan_sampling(trial.protocol, expected_s, independent).to_message())
        return rank.channel.closed


def _obey(messages: Sequence[Mapping[str, Any]], ranks: list[RankHandle]) -> bool:
    """Obey messages to the ranks of a trial on several nodes; return whether a rank of another node has failed."""
    for message in messages:
        if message["cmd"] == "sample":
            _start_sampling(ranks, message["plan"])
    return any(message["cmd"] == "peer-failed" for message in messages)


def _start_sampling(ranks: list[RankHandle], plan: Mapping[str, Any]) -> None:
    for rank in ranks:
        rank.channel.send(**plan)


def create_rendezvous_folder() -> str:
    """Create the folder that the ranks of a run share, below TMPDIR."""
    return create_private_folder(build_owned_prefix("corewise-trial"))


def _has_succeeded(rank: RankHandle) -> bool:
    try:
        with open(rank.result_file, encoding="utf-8") as file:
            return bool(json.load(file)["status"] == "ok")
    except (OSError, ValueError, KeyError):
        return False


def kill_all(ranks: list[RankHandle], category: str, reason: str) -> None:
    """Kill the ranks that still run; if they hang, what they were doing is in their logs before."""
    running = [rank for rank in ranks if not rank.gone]
    if category in HANGING:
        stopped = [str(rank.rank) for rank in running if _is_stopped(rank.pid)]
        if stopped:
            # The other ranks may only have waited for these.
            reason += f"; stopped by a signal before (SIGSTOP): rank {', '.join(stopped)}"
        _collect_stacks(running)
    for rank in running:
        rank.kill(category, reason)


def _collect_stacks(ranks: list[RankHandle]) -> None:
    """Wait until the logs of all ranks have the stacks of their threads, for a limited time."""
    sizes = {rank.rank: _read_size(rank.log_file) for rank in ranks}
    for rank in ranks:
        rank.request_stacks()
    deadline = time.monotonic() + MAX_STACK_S
    while time.monotonic() < deadline:
        time.sleep(STACK_POLL_S)
        before, sizes = sizes, {rank.rank: _read_size(rank.log_file) for rank in ranks}
        # A log that has grown and then rested is complete.
        if sizes == before and all(map(_has_stacks, ranks)):
            return


def _read_size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _has_stacks(rank: RankHandle) -> bool:
    return "most recent call first" in _read_log_tail(rank.log_file, STACK_TAIL_BYTES)


def _is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[-1].split()[0] == "T"
    except OSError:
        return False


def _kill_group(pid: int) -> None:
    # A rank that has just been forked may not lead its process group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def wait_for_end(rank: RankHandle, limit_s: float) -> bool:
    """Return whether the rank, whose pipe is closed, ends within the limit."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        pid, status = os.waitpid(rank.pid, os.WNOHANG)
        if pid:
            rank.wait_status = status
            return True
        time.sleep(0.001)
    return False


def reap(rank: RankHandle) -> None:
    """Wait for the rank and kill its process group, such as loader workers, which a rank never ends itself."""
    if rank.wait_status is None:
        _, rank.wait_status = os.waitpid(rank.pid, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.pid, signal.SIGKILL)


def count_oom_kills() -> int:
    """Read how many processes the out-of-memory killer has ended since boot."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def explain_death(rank: RankHandle, oom_killed: bool) -> Any:
    """Build the result of a rank that ended without one."""
    hangs = rank.killed_for is not None and rank.killed_for[0] in HANGING
    tail = _read_log_tail(rank.log_file, STACK_TAIL_BYTES if hangs else LOG_TAIL_BYTES)
    if rank.killed_for is not None:
        return build_failure(rank.rank, rank.killed_for[0], rank.killed_for[1], tail)
    status = rank.wait_status or 0
    if os.WIFSIGNALED(status):
        name = name_signal(os.WTERMSIG(status))
        if name == "SIGKILL" and oom_killed:
            return build_failure(rank.rank, "memory", "out of memory: the kernel killed the rank", tail)
        return build_failure(rank.rank, "crash", f"the rank was killed by {name}", tail)
    code = os.WEXITSTATUS(status)
    if code == DISK_EXIT:
        return build_failure(rank.rank, "disk", "the rank could not write its result", tail)
    return build_failure(rank.rank, "exit", f"the rank ended with exit code {code} and left no result", tail)


def _read_log_tail(path: Path, num_bytes: int) -> str:
    try:
        data = path.read_bytes()[-num_bytes:]
    except OSError:
        return ""
    return data.decode("utf-8", "replace")
