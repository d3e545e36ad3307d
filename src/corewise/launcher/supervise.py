"""The supervisor of a launch: starts the ranks, relays what they print, passes signals on, ends them all.

It sleeps in the kernel until a rank speaks or dies, a signal comes or a time is up.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from corewise.launcher.descendants import (
    descendants,
    end_descendants,
    ended_child,
    has_children,
    process_name,
    read_parents,
    reaped,
    signal_all,
)
from corewise.launcher.front import END_LIMIT_S, Guard, exit_code
from corewise.launcher.logs import log_file
from corewise.launcher.outcome import DIED_OF_SIGNAL, Manner, Outcome, RankEnd
from corewise.launcher.ranks import RankStart
from corewise.launcher.starting import Descriptors, allow_files, fork_rank, no_room
from corewise.launcher.streams import UPDATE_EVERY_S, Lines, Raw, Relay, Sink
from corewise.worker.signals import signal_name

if TYPE_CHECKING:
    from corewise.launcher.verify import Verifier

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PATIENCE_S = 0.5  # for helpers that end by themselves once their rank has
LEFTOVER_GRACE_S = 2.0  # at most, for what a rank left behind
KILL_EVERY_S = 0.1


@dataclass
class _Rank:
    start: RankStart
    pid: int
    began: float
    started: bool = False
    problem: str = ""
    end: RankEnd | None = None
    told_to_end: bool = False


class _FrontGone(Exception):
    """The process the user started has died."""


def supervise(
    starts: Sequence[RankStart], program: str, manner: Manner, guard: Guard, *, on_terminal: bool
) -> Outcome:
    """Run the ranks to their end, whatever that is; leaves no process behind."""
    with ExitStack() as stack:
        return _Supervisor(starts, program, manner, guard, on_terminal, stack).run()


class _Supervisor:
    def __init__(
        self,
        starts: Sequence[RankStart],
        program: str,
        manner: Manner,
        guard: Guard,
        on_terminal: bool,
        stack: ExitStack,
    ) -> None:
        self.starts, self.program, self.manner, self.guard = starts, program, manner, guard
        self.on_terminal, self.stack = on_terminal, stack
        self.selector = stack.enter_context(selectors.PollSelector())  # takes plain files, as epoll does not
        self.relay = Relay(self.selector)
        self.ranks: list[_Rank] = []
        self.first_failed: RankEnd | None = None
        self.asked_to_end, self.asked_at = 0, 0.0
        self.impatient = False  # asked to end after all ranks had ended
        self.leftovers: dict[int, str] = {}
        self.stubborn = False
        self.verifier = self._make_verifier()
        self.timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self.only_leftovers = False
        self.killing_since = 0.0

    def run(self) -> Outcome:
        self._listen()
        files_limit = allow_files(len(self.starts))
        for start in self.starts:
            try:
                self._start(start, files_limit)
            except OSError as problem:  # those that have started die with us
                raise no_room(start.rank, problem) from None
        os.setsid()  # only now: a rank on the terminal needs the terminal's session
        signal.pthread_sigmask(signal.SIG_SETMASK, self.guard.mask)
        was_killed = False
        try:
            while not self._reap():
                self._wait()
            self.relay.drain()
            self.timers.clear()
            self.impatient = False
            while self.relay.num_waiting_bytes and not self.impatient:
                self._wait()
        except _FrontGone:
            was_killed = True
            end_descendants(END_LIMIT_S)
        return Outcome(
            ranks=tuple(rank.end for rank in self.ranks if rank.end is not None),
            first_failed=self.first_failed,
            asked_to_end=signal_name(self.asked_to_end) if self.asked_to_end else "",
            leftovers=tuple(self.leftovers.values()),
            stubborn=self.stubborn,
            problems=tuple(self.relay.problems()),
            proof=self.verifier.proof() if self.verifier is not None else None,
            was_killed=was_killed,
        )

    def _make_verifier(self) -> "Verifier | None":
        if not self.manner.verify:
            return None
        from corewise.launcher.verify import Verifier  # only those who ask for it wait for it

        return Verifier(
            [start.placement.cpus if start.confined else self.manner.allocation for start in self.starts]
        )

    # Starting

    def _listen(self) -> None:
        """Wake up for signals, whether the front or the kernel brings them."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (*self.guard.watched, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self.selector.register(read_end, selectors.EVENT_READ, lambda: self._hear_kernel(read_end))
        self.selector.register(self.guard.signals_fd, selectors.EVENT_READ, self._hear_front)

    def _start(self, start: RankStart, files_limit: tuple[int, int] | None) -> None:
        given, theirs = self._descriptors(start.rank)
        pid, told = fork_rank(
            start,
            self.program,
            given,
            own_session=not self.on_terminal,
            mask=self.guard.mask,
            handled=tuple(self.guard.watched),
            files_limit=files_limit,
        )
        for fd in theirs:
            os.close(fd)
        rank = _Rank(start, pid, time.monotonic())
        self.ranks.append(rank)
        self.selector.register(told, selectors.EVENT_READ, lambda: self._hear_start(rank, told))

    def _descriptors(self, rank: int) -> tuple[Descriptors, list[int]]:
        """What the rank gets, and those of it that are ours to close."""
        if not self.manner.relays(len(self.starts)):
            return Descriptors(), []
        stdin = None
        if len(self.starts) > 1 and (rank > 0 or os.isatty(0)):  # a pipe or a file goes to rank 0
            stdin = os.open(os.devnull, os.O_RDONLY)
        log = self._log(rank)
        out = self._pipe(rank, self.relay.stdout, log)
        err = out if self.relay.is_one_stream else self._pipe(rank, self.relay.stderr, log)
        return Descriptors(stdin, out, err), [fd for fd in {stdin, out, err} if fd is not None]

    def _pipe(self, rank: int, sink: Sink, log: BinaryIO | None) -> int:
        read_end, write_end = os.pipe()
        prefix = f"[{rank}] ".encode() if self.manner.prefix else b""
        self.relay.add(read_end, Lines(prefix) if len(self.starts) > 1 else Raw(), sink, log)
        return write_end

    def _log(self, rank: int) -> BinaryIO | None:
        if self.manner.log_dir is None:
            return None
        return self.stack.enter_context(open(log_file(self.manner.log_dir, rank), "ab", buffering=0))

    # Waiting and hearing

    def _wait(self) -> None:
        self.relay.check_sinks()
        self.relay.update()
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

    def _hear_front(self) -> None:
        messages = os.read(self.guard.signals_fd, 512)
        if not messages:
            raise _FrontGone
        for number, by_terminal in zip(messages[::2], messages[1::2], strict=True):
            self._forward(number, bool(by_terminal))

    def _hear_kernel(self, fd: int) -> None:
        for number in os.read(fd, 512):
            if number != signal.SIGCHLD:  # every turn of the loop reaps
                self._forward(number, by_terminal=False)

    def _hear_start(self, rank: _Rank, fd: int) -> None:
        rank.problem = os.read(fd, 4096).decode("utf-8", "replace")
        rank.started = True
        self.selector.unregister(fd)
        os.close(fd)
        if all(each.started for each in self.ranks):
            self._look()

    def _look(self) -> None:
        living = {rank.start.rank: rank.pid for rank in self.ranks if rank.end is None}
        if self.verifier is not None and living:
            self._set_timer("look", self.verifier.look(living), self._look)

    def _look_at_the_end(self) -> None:
        """A last look when a rank has ended: at its own mask, and at what it leaves behind."""
        with suppress(ChildProcessError):
            ended = ended_child()
            if any(rank.pid == ended for rank in self.ranks):
                self._look()

    # Ending

    def _forward(self, number: int, by_terminal: bool) -> None:
        if number in ENDING:
            self.asked_to_end, self.asked_at = number, time.monotonic()
            if all(rank.end for rank in self.ranks):  # only what they left behind is still there
                self.impatient = True
                self._kill_all()
        if by_terminal and (self.on_terminal or (number == signal.SIGWINCH and len(self.ranks) > 1)):
            return  # a rank on the terminal was told by the terminal; pipes have no size
        if number == signal.SIGTSTP:
            number = signal.SIGSTOP  # a rank that leads its own session ignores the former
        for rank in self.ranks:
            if rank.end is None:
                _send(rank.pid, number, to_group=by_terminal or number in (signal.SIGSTOP, signal.SIGCONT))

    def _reap(self) -> bool:
        """True when every rank and all it started are gone, or will not go."""
        if not all(rank.started for rank in self.ranks):  # so that verifying sees even the shortest
            return False
        if self.verifier is not None:
            self._look_at_the_end()
        for pid, status in reaped():
            self._note_end(pid, status)
        if not has_children():
            return True
        if all(rank.end for rank in self.ranks) and not self.only_leftovers:
            self.only_leftovers = True
            self.timers.pop("kill", None)
            self._set_timer("leftovers", PATIENCE_S, self._end_leftovers)
        return self.stubborn

    def _note_end(self, pid: int, status: int) -> None:
        rank = next((each for each in self.ranks if each.pid == pid), None)
        if rank is None:
            return  # an orphan we had adopted
        rank.end = RankEnd(
            rank=rank.start.rank,
            pid=pid,
            code=exit_code(status),
            seconds=time.monotonic() - rank.began,
            signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            problem=rank.problem,
            ended_by_us=rank.told_to_end,
        )
        if rank.end.code and self.first_failed is None:
            self.first_failed = rank.end
            if self._is_own_failure(rank.end.code):
                self.asked_to_end = 0
            self._end_others()

    def _is_own_failure(self, code: int) -> bool:
        """Whether a rank failed long after a signal to end, which ranks may have taken for something else."""
        is_late = time.monotonic() - self.asked_at > self.manner.grace_s
        return is_late and code != DIED_OF_SIGNAL + self.asked_to_end

    def _end_others(self) -> None:
        """One has failed: the others are told to end, and killed when they do not."""
        for rank in self.ranks:
            if rank.end is None:
                rank.told_to_end = True
                if not self.asked_to_end:  # else they have been told, and may be busy ending well
                    _send(rank.pid, signal.SIGTERM)
                    _send(rank.pid, signal.SIGCONT)
        self._set_timer("kill", self.manner.grace_s, self._kill_all)

    def _end_leftovers(self) -> None:
        left = descendants(os.getpid(), read_parents())
        self.leftovers.update({pid: process_name(pid) or str(pid) for pid in left})
        signal_all(left, signal.SIGTERM)
        self._set_timer("kill", min(self.manner.grace_s, LEFTOVER_GRACE_S), self._kill_all)

    def _kill_all(self) -> None:
        """Kill all that descends from us, again and again until it is gone."""
        now = time.monotonic()
        self.killing_since = self.killing_since or now
        self.stubborn = now - self.killing_since > END_LIMIT_S
        signal_all(descendants(os.getpid(), read_parents()), signal.SIGKILL)
        self.timers.pop("kill", None)
        self._set_timer("kill", KILL_EVERY_S, self._kill_all)


def _send(pid: int, number: int, to_group: bool = False) -> None:
    if to_group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            return
    signal_all([pid], number)
