"""Starts a rank, from fork to exec: session, CPUs, memory policy, descriptors, command."""

import errno
import os
import re
import resource
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from corewise import process_control
from corewise.launch.ranks import RankStart
from corewise.measured import pinning

NOT_FOUND, NOT_EXECUTABLE, NOT_STARTED = 127, 126, 1
# Each rank needs two output pipes, a log, a start pipe and one spare descriptor.
FILES_PER_RANK, OWN_FILES = 5, 64
# What to do when the system cannot start another rank, by error number.
REMEDIES = {
    errno.EMFILE: "use fewer processes, or allow more open files (`ulimit -n`)",
    errno.EAGAIN: "use fewer processes, or allow more (`ulimit -u`, the cgroup's pids.max)",
    errno.ENOMEM: "use fewer processes",
}


@dataclass(frozen=True)
class Descriptors:
    """The standard input, output and error of a rank; None means that it inherits ours."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None


class StartError(Exception):
    """The command cannot be started; `code` is the exit code that shells return in this case."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def find_program(name: str, path: str) -> str:
    """Find the program of a command; raises StartError with code 127 or 126, as shells do."""
    candidates = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    existing = [each for each in candidates if name and os.path.exists(each)]
    usable = [each for each in existing if os.path.isfile(each) and os.access(each, os.X_OK)]
    if usable:
        return usable[0]
    if not existing:
        reason = "no such file" if "/" in name else "command not found"
        shown = name or "empty command"
        raise StartError(NOT_FOUND, f"{shown}: {reason}; check its name, and PATH{suggest_fix(name)}")
    if os.path.isdir(existing[0]):
        raise StartError(NOT_EXECUTABLE, f"{existing[0]}: is a directory")
    raise StartError(NOT_EXECUTABLE, f"{existing[0]}: not executable; run chmod +x on it{suggest_fix(name)}")


def suggest_fix(name: str) -> str:
    """Suggest how to fix a command that does not start, as the end of a sentence; empty for no idea."""
    if re.match(r"[A-Za-z_]\w*=", name):
        return f" (to set a variable, put `--env {name}` before the command)"
    if " " in name:
        return " (pass the command as separate arguments, or a shell line as: sh -c 'LINE')"
    if name.endswith(".py"):
        return " (or put `python` before it)"
    return ""


def raise_file_limit(num_ranks: int) -> tuple[int, int] | None:
    """Raise the limit of open files if it is too low; return the old limit for the ranks, else None."""
    soft, hard = limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_PER_RANK * num_ranks + OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return limit


def build_start_error(rank: int, problem: OSError) -> StartError:
    """Build the error for a rank that the system could not start, with what to do about it."""
    remedy = REMEDIES.get(problem.errno or 0, "see `corewise doctor`")
    return StartError(NOT_STARTED, f"rank {rank} could not start: {problem.strerror}; {remedy}")


def spawn_rank(
    start: RankStart,
    program: str,
    descriptors: Descriptors,
    *,
    own_session: bool,
    mask: Iterable[int],
    handled: Sequence[signal.Signals],
    files_limit: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Start a rank; return its pid and a pipe that closes on exec, or first carries the error."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid:
        os.close(write_end)
        return pid, read_end
    code = NOT_STARTED
    try:
        _reset_signals(handled)
        process_control.end_with_parent(parent)
        if own_session:
            os.setsid()
        _assign_descriptors(descriptors)
        if start.is_confined:
            pinning.apply_placement(start.placement)
        else:
            pinning.set_memory_policy(start.placement)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # The limit comes last, since the steps above may open files.
        if files_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, files_limit)
        os.execve(program, start.command, start.env)
    except OSError as problem:
        code = NOT_EXECUTABLE if problem.filename == program else NOT_STARTED
        reason = _explain_failure(problem, program) if code == NOT_EXECUTABLE else problem.strerror or str(problem)
        with suppress(OSError):
            os.write(write_end, os.fsencode(reason))
    finally:
        os._exit(code)


def _explain_failure(problem: OSError, program: str) -> str:
    hint = {
        errno.ENOEXEC: "; does its first line lack a #! with an interpreter?",
        errno.ENOENT: "; is the interpreter that its first line names there?",
    }.get(problem.errno or 0, "")
    return f"{program}: {problem.strerror}{hint}"


def _reset_signals(handled: Iterable[signal.Signals]) -> None:
    """Restore the signal handlers that Python has changed; signals that the user ignores stay ignored."""
    signal.set_wakeup_fd(-1)
    for number in (*handled, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _assign_descriptors(descriptors: Descriptors) -> None:
    for number, given in enumerate((descriptors.stdin, descriptors.stdout, descriptors.stderr)):
        if given is not None:
            # The original descriptors are above 2 and close on exec.
            os.dup2(given, number)
