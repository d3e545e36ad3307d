"""Signals that ask a command to end: SIGINT, SIGTERM and SIGHUP interrupt it, so that it cleans up."""

import signal
import time

from corewise.cli.exit_codes import HUNG_UP, INTERRUPTED

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Shells and batch systems send several signals for one reason. Those within this time do not disturb the cleanup.
SAME_REASON_S = 1.0
# The signals that have interrupted this process, with their times.
_interrupts: list[tuple[int, float]] = []


def end_silently() -> None:
    """Let signals end this process at once: it has nothing to clean up yet, or no longer."""
    for number in _list_watched():
        signal.signal(number, signal.SIG_DFL)


def raise_interrupts() -> None:
    """Turn signals to end into KeyboardInterrupt."""
    for number in _list_watched():
        signal.signal(number, _interrupt)


def compute_exit_code() -> int:
    """Return the exit code of an interrupted command."""
    return HUNG_UP if _interrupts and _interrupts[0][0] == signal.SIGHUP else INTERRUPTED


def _list_watched() -> list[signal.Signals]:
    """List the signals to end that are not ignored, as nohup and background jobs of shells do."""
    return [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]


def _interrupt(number: int, frame: object) -> None:
    now = time.monotonic()
    # A second Ctrl-C always counts: the user is in a hurry.
    if number == signal.SIGINT or not _interrupts or now - _interrupts[-1][1] > SAME_REASON_S:
        _interrupts.append((number, now))
        raise KeyboardInterrupt
