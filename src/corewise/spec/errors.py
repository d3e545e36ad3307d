"""The one door by which a user's mistakes leave."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake only the user can mend; its text says where, what and what to do next. Exit code 2."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the nearest known word, or all of them."""
    words = sorted(known)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(words)
