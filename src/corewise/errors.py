"""User-facing errors (exit code 2)."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake that only the user can correct. Its text says where, what, and what to do next."""


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that gives the nearest known name, or all of them.

    Example:
        >>> suggest_nearest("tread", ["threads", "batch"])
        "did you mean 'threads'?"
    """
    known_names = sorted(known)
    close = get_close_matches(name, known_names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(known_names)
