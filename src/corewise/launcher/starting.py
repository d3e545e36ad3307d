"""A rank from fork to exec: its session, its CPUs, its memory policy, its descriptors, then its words."""

import errno
import os
import re
import resource
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from corewise.launcher.ranks import RankStart
from corewise.machine import pinning

NOT_FOUND, NOT_EXECUTABLE, NOT_STARTED = 127, 126, 1
FILES_OF_RANK, FILES_OF_OURS = 5, 64  # two pipes, a log, the pipe that tells of its start, and one to spare
WAYS_OUT = {  # of ranks that the system has no room for
    errno.EMFILE: "use fewer processes, or allow more open files (`ulimit -n`)",
    errno.EAGAIN: "use fewer processes, or allow more (`ulimit -u`, the cgroup's pids.max)",
    errno.ENOMEM: "use fewer processes",
}


@dataclass(frozen=True)
class Descriptors:
    """What a rank gets as standard input, output and error; None leaves it what we have."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None


class CannotStart(Exception):
    """A command that no rank could be started with; `code` is what shells return then."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def find_program(word: str, path: str) -> str:
    """The file a command's first word names; raises CannotStart as shells do for 127 and 126."""
    candidates = [word] if "/" in word else [f"{folder or '.'}/{word}" for folder in path.split(":")]
    found = [each for each in candidates if word and os.path.exists(each)]
    usable = [each for each in found if os.path.isfile(each) and os.access(each, os.X_OK)]
    if usable:
        return usable[0]
    if not found:
        where = "no such file" if "/" in word else "command not found"
        shown = word or "an empty word"
        raise CannotStart(NOT_FOUND, f"{shown}: {where}; check its name, and PATH{how_to_start(word)}")
    if os.path.isdir(found[0]):
        raise CannotStart(NOT_EXECUTABLE, f"{found[0]}: is a directory")
    raise CannotStart(NOT_EXECUTABLE, f"{found[0]}: not executable; chmod +x it{how_to_start(word)}")


def how_to_start(word: str) -> str:
    """What may be wrong with the first word of a command that does not start, as the end of a sentence."""
    if re.match(r"[A-Za-z_]\w*=", word):
        return f" (to set a variable, put `--env {word}` before the command)"
    if " " in word:
        return " (give a command as several words, a line of a shell as: sh -c 'LINE')"
    if word.endswith(".py"):
        return " (or put `python` before it)"
    return ""


def allow_files(num_ranks: int) -> tuple[int, int] | None:
    """The limit of open files that ranks shall find again, where it was too low for so many and is raised."""
    soft, hard = limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_OF_RANK * num_ranks + FILES_OF_OURS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return limit


def no_room(rank: int, problem: OSError) -> CannotStart:
    """Why the system would not start one more rank, with what to do about it."""
    way_out = WAYS_OUT.get(problem.errno or 0, "see `corewise doctor`")
    return CannotStart(NOT_STARTED, f"rank {rank} could not start: {problem.strerror}; {way_out}")


def fork_rank(
    start: RankStart,
    program: str,
    descriptors: Descriptors,
    *,
    own_session: bool,
    mask: Iterable[int],
    handled: Sequence[signal.Signals],
    files_limit: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """The rank's process, and a pipe that ends when its words run, or tells first why they do not."""
    told, tell = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(told)
        os.close(tell)
        raise
    if pid:
        os.close(tell)
        return pid, told
    code = NOT_STARTED
    try:
        _reset_signals(handled)
        pinning.die_with_parent(parent)
        if own_session:
            os.setsid()
        _take(descriptors)
        if start.confined:
            pinning.apply(start.placement)
        else:
            pinning.set_memory_policy(start.placement)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if files_limit is not None:  # last: what opens a file on the way here would meet it
            resource.setrlimit(resource.RLIMIT_NOFILE, files_limit)
        os.execve(program, start.words, start.env)
    except OSError as problem:
        code = NOT_EXECUTABLE if problem.filename == program else NOT_STARTED
        reason = _explained(problem, program) if code == NOT_EXECUTABLE else problem.strerror or str(problem)
        with suppress(OSError):
            os.write(tell, os.fsencode(reason))
    finally:
        os._exit(code)


def _explained(problem: OSError, program: str) -> str:
    hint = {
        errno.ENOEXEC: "; does its first line lack a #! with an interpreter?",
        errno.ENOENT: "; is the interpreter that its first line names there?",
    }.get(problem.errno or 0, "")
    return f"{program}: {problem.strerror}{hint}"


def _reset_signals(handled: Iterable[signal.Signals]) -> None:
    """What our own Python has changed goes back to what a program expects; what the user ignores stays so."""
    signal.set_wakeup_fd(-1)
    for number in (*handled, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _take(descriptors: Descriptors) -> None:
    for number, given in enumerate((descriptors.stdin, descriptors.stdout, descriptors.stderr)):
        if given is not None:
            os.dup2(given, number)  # ours are above 2 and close on exec
