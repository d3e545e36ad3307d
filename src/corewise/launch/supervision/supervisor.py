"""The supervisor of a launch: starts the ranks, relays their output, forwards signals, ends all processes.

It sleeps in the kernel until a rank prints or ends, a signal arrives, or a timer expires.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from corewise.launch.launch_outcome import DIED_OF_SIGNAL, LaunchOutcome, LaunchPolicy, RankEnd
from corewise.launch.ranks import RankStart
from corewise.launch.supervision.front_process import SignalSetup, compute_exit_code
from corewise.launch.supervision.output_streams import (
    UPDATE_EVERY_S,
    LineAssembler,
    OutputRelay,
    OutputSink,
    PassThrough,
)
from corewise.launch.supervision.rank_logs import build_log_path
from corewise.launch.supervision.rank_start import Descriptors, build_start_error, raise_file_limit, spawn_rank
from corewise.measured.worker.descendants import (
    END_LIMIT_S,
    collect_ended_children,
    find_descendants,
    find_ended_child,
    has_children,
    is_stopped,
    kill_descendants,
    read_parents,
    read_process_name,
    send_signal,
)
from corewise.measured.worker.signal_names import name_signal

if TYPE_CHECKING:
    from corewise.launch.pinning_proof import PinningVerifier

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Helper processes get this time to end after their rank has ended.
PATIENCE_S = 0.5
# Processes that a rank left behind get at most this time between SIGTERM and SIGKILL.
LEFTOVER_GRACE_S = 2.0
KILL_EVERY_S = 0.1


@dataclass
class _Rank:
    start: RankStart
    pid: int
    began: float
    started: bool = False
    problem: str = ""
    end: RankEnd | None = None
    was_terminated: bool = False


class _FrontGone(Exception):
    """The process that the user started has died."""


def supervise(
    starts: Sequence[RankStart], program: str, policy: LaunchPolicy, signals: SignalSetup, *, on_terminal: bool
) -> LaunchOutcome:
    """Run the ranks until they end and leave no process behind."""
    with ExitStack() as stack:
        return _Supervisor(starts, program, policy, signals, on_terminal, stack).run()


class _Supervisor:
    def __init__(
        self,
        starts: Sequence[RankStart],
        program: str,
        policy: LaunchPolicy,
        signals: SignalSetup,
        on_terminal: bool,
        stack: ExitStack,
    ) -> None:
        self.starts, self.program, self.policy, self.signals = starts, program, policy, signals
        self.on_terminal, self.stack = on_terminal, stack
        # poll accepts regular files; epoll does not.
        self.selector = stack.enter_context(selectors.PollSelector())
        self.relay = OutputRelay(self.selector)
        self.ranks: list[_Rank] = []
        self.first_failed: RankEnd | None = None
        self.end_signal, self.end_signal_at = 0, 0.0
        # Set when a signal to end arrives after all ranks have ended.
        self.is_interrupted = False
        self.leftovers: dict[int, str] = {}
        self.has_survivors = False
        self.verifier = self._create_verifier()
        self.timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self.only_leftovers = False
        self.kill_started_at = 0.0

    def run(self) -> LaunchOutcome:
        self._register_signals()
        files_limit = raise_file_limit(len(self.starts))
        for start in self.starts:
            try:
                self._start(start, files_limit)
            except OSError as problem:
                # The ranks that have started die with this process.
                raise build_start_error(start.rank, problem) from None
        # A rank on the terminal must start in the terminal's session, so we leave it only now.
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, self.signals.mask)
        was_killed = False
        try:
            while not self._collect_ended():
                self._wait()
            self.relay.read_remaining()
            self.timers.clear()
            self.is_interrupted = False
            while self.relay.num_waiting_bytes and not self.is_interrupted:
                self._wait()
        except _FrontGone:
            was_killed = True
            kill_descendants(END_LIMIT_S)
        return LaunchOutcome(
            ranks=tuple(rank.end for rank in self.ranks if rank.end is not None),
            first_failed=self.first_failed,
            end_signal=name_signal(self.end_signal) if self.end_signal else "",
            leftovers=tuple(self.leftovers.values()),
            has_survivors=self.has_survivors,
            problems=tuple(self.relay.list_problems()),
            proof=self.verifier.build_proof() if self.verifier is not None else None,
            was_killed=was_killed,
        )

    def _create_verifier(self) -> "PinningVerifier | None":
        if not self.policy.verify:
            return None
        # Only a launch that verifies its pinning pays for this import.
        from corewise.launch.pinning_proof import PinningVerifier

        return PinningVerifier(
            [start.placement.cpus if start.is_confined else self.policy.allocation for start in self.starts],
            first_rank=self.starts[0].rank,
        )

    def _register_signals(self) -> None:
        """Wake up for signals, both those that the front forwards and those from the kernel."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (*self.signals.watched, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.selector.register(read_end, selectors.EVENT_READ, lambda: self._handle_kernel_signals(read_end))
        self.selector.register(self.signals.signals_fd, selectors.EVENT_READ, self._handle_front)

    def _start(self, start: RankStart, files_limit: tuple[int, int] | None) -> None:
        descriptors, to_close = self._open_descriptors(start.rank)
        pid, start_fd = spawn_rank(
            start,
            self.program,
            descriptors,
            own_session=not self.on_terminal,
            mask=self.signals.mask,
            handled=tuple(self.signals.watched),
            files_limit=files_limit,
        )
        for fd in to_close:
            os.close(fd)
        rank = _Rank(start, pid, time.monotonic())
        self.ranks.append(rank)
        self.selector.register(start_fd, selectors.EVENT_READ, lambda: self._handle_start(rank, start_fd))

    def _open_descriptors(self, rank: int) -> tuple[Descriptors, list[int]]:
        """Open the rank's descriptors; also return those that we must close after the start."""
        if not self.policy.uses_relay(len(self.starts)):
            return Descriptors(), []
        stdin = None
        # Only rank 0 reads a pipe or a file on standard input.
        if len(self.starts) > 1 and (rank > 0 or os.isatty(0)):
            stdin = os.open(os.devnull, os.O_RDONLY)
        log = self._open_log(rank)
        out = self._open_pipe(rank, self.relay.stdout, log)
        err = out if self.relay.is_one_stream else self._open_pipe(rank, self.relay.stderr, log)
        return Descriptors(stdin, out, err), [fd for fd in {stdin, out, err} if fd is not None]

    def _open_pipe(self, rank: int, sink: OutputSink, log: BinaryIO | None) -> int:
        read_end, write_end = os.pipe()
        prefix = f"[{rank}] ".encode() if self.policy.prefix else b""
        self.relay.add(read_end, LineAssembler(prefix) if len(self.starts) > 1 else PassThrough(), sink, log)
        return write_end

    def _open_log(self, rank: int) -> BinaryIO | None:
        if self.policy.log_dir is None:
            return None
        return self.stack.enter_context(open(build_log_path(self.policy.log_dir, rank), "ab", buffering=0))

    def _wait(self) -> None:
        self.relay.check_sinks()
        self.relay.update_selector()
        if self.relay.has_updates:
            self._set_timer("bars", UPDATE_EVERY_S, self.relay.show_updates)
        due = min((at for at, _ in self.timers.values()), default=None)
        timeout = None if due is None else max(0.0, due - time.monotonic())
        for key, _ in self.selector.select(timeout):
            key.data()
        now = time.monotonic()
        for name, (at, act) in list(self.timers.items()):
            if at <= now and name in self.timers:
                del self.timers[name]
                act()

    def _set_timer(self, name: str, wait_s: float, act: Callable[[], None]) -> None:
        self.timers.setdefault(name, (time.monotonic() + wait_s, act))

    def _handle_front(self) -> None:
        messages = os.read(self.signals.signals_fd, 512)
        if not messages:
            raise _FrontGone
        for number, by_terminal in zip(messages[::2], messages[1::2], strict=True):
            self._forward(number, bool(by_terminal))

    def _handle_kernel_signals(self, fd: int) -> None:
        for number in os.read(fd, 512):
            # The main loop reaps children in every iteration.
            if number != signal.SIGCHLD:
                self._forward(number, by_terminal=False)

    def _handle_start(self, rank: _Rank, fd: int) -> None:
        rank.problem = os.read(fd, 4096).decode("utf-8", "replace")
        rank.started = True
        self.selector.unregister(fd)
        os.close(fd)
        if all(each.started for each in self.ranks):
            self._observe_ranks()

    def _observe_ranks(self) -> None:
        living = {index: rank.pid for index, rank in enumerate(self.ranks) if rank.end is None}
        if self.verifier is not None and living:
            self._set_timer("observe", self.verifier.observe_ranks(living), self._observe_ranks)

    def _observe_ended_rank(self) -> None:
        """Observe a rank that has ended one last time: its mask and the processes that it left behind."""
        with suppress(ChildProcessError):
            ended = find_ended_child()
            if any(rank.pid == ended for rank in self.ranks):
                self._observe_ranks()

    def _forward(self, number: int, by_terminal: bool) -> None:
        if number in ENDING:
            self.end_signal, self.end_signal_at = number, time.monotonic()
            # Only processes that the ranks left behind still run.
            if all(rank.end for rank in self.ranks):
                self.is_interrupted = True
                self._kill_all()
            self._resume_stopped_ranks(number)
        if by_terminal and (self.on_terminal or (number == signal.SIGWINCH and len(self.ranks) > 1)):
            # The terminal has already signalled a rank on it, and pipes have no window size.
            return
        if number == signal.SIGTSTP:
            # A rank that leads its session ignores SIGTSTP.
            number = signal.SIGSTOP
        for rank in self.ranks:
            if rank.end is None:
                _send(rank.pid, number, to_group=by_terminal or number in (signal.SIGSTOP, signal.SIGCONT))

    def _resume_stopped_ranks(self, number: int) -> None:
        """Resume ranks that are stopped, so that they can handle a signal to end.

        A stopped rank is not saving its work, so SIGTERM has a deadline for it.
        """
        stopped = [rank for rank in self.ranks if rank.end is None and is_stopped(rank.pid)]
        for rank in stopped:
            _send(rank.pid, signal.SIGCONT, to_group=True)
        if stopped and number == signal.SIGTERM:
            self._set_timer("kill stopped", self.policy.grace_s, lambda: self._kill_ranks(stopped))

    def _kill_ranks(self, ranks: Sequence[_Rank]) -> None:
        for rank in ranks:
            if rank.end is None:
                rank.was_terminated = True
                _send(rank.pid, signal.SIGKILL)

    def _collect_ended(self) -> bool:
        """Reap ended processes; True when all processes have ended or cannot be killed."""
        # Reaping waits until all ranks have started, so verification observes even the shortest one.
        if not all(rank.started for rank in self.ranks):
            return False
        if self.verifier is not None:
            self._observe_ended_rank()
        for pid, status in collect_ended_children():
            self._record_end(pid, status)
        if not has_children():
            return True
        if all(rank.end for rank in self.ranks) and not self.only_leftovers:
            self.only_leftovers = True
            self.timers.pop("kill", None)
            self._set_timer("leftovers", PATIENCE_S, self._end_leftovers)
        return self.has_survivors

    def _record_end(self, pid: int, status: int) -> None:
        rank = next((each for each in self.ranks if each.pid == pid), None)
        # Other processes are orphans that we have adopted.
        if rank is None:
            return
        rank.end = RankEnd(
            rank=rank.start.rank,
            pid=pid,
            code=compute_exit_code(status),
            seconds=time.monotonic() - rank.began,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            problem=rank.problem,
            ended_by_us=rank.was_terminated,
        )
        if rank.end.code and self.first_failed is None:
            self.first_failed = rank.end
            if self._is_own_failure(rank.end.code):
                self.end_signal = 0
            self._end_others()

    def _is_own_failure(self, code: int) -> bool:
        """Return True when a rank failed long after a signal to end, so the signal is not the cause."""
        is_late = time.monotonic() - self.end_signal_at > self.policy.grace_s
        return is_late and code != DIED_OF_SIGNAL + self.end_signal

    def _end_others(self) -> None:
        """Terminate the other ranks after one has failed, and kill those that do not end."""
        for rank in self.ranks:
            if rank.end is None:
                rank.was_terminated = True
                # Ranks that already received a signal to end may be busy with their cleanup.
                if not self.end_signal:
                    _send(rank.pid, signal.SIGTERM)
                    _send(rank.pid, signal.SIGCONT)
        self._set_timer("kill", self.policy.grace_s, self._kill_all)

    def _end_leftovers(self) -> None:
        left = find_descendants(os.getpid(), read_parents())
        self.leftovers.update({pid: read_process_name(pid) or str(pid) for pid in left})
        send_signal(left, signal.SIGTERM)
        self._set_timer("kill", min(self.policy.grace_s, LEFTOVER_GRACE_S), self._kill_all)

    def _kill_all(self) -> None:
        """Kill all our descendants, repeatedly until none is left."""
        now = time.monotonic()
        self.kill_started_at = self.kill_started_at or now
        self.has_survivors = now - self.kill_started_at > END_LIMIT_S
        send_signal(find_descendants(os.getpid(), read_parents()), signal.SIGKILL)
        self.timers.pop("kill", None)
        self._set_timer("kill", KILL_EVERY_S, self._kill_all)


def _send(pid: int, number: int, to_group: bool = False) -> None:
    if to_group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            return
    send_signal([pid], number)
