"""Parser for benchdnn's problem notation, with errors that point at the mistake.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Dict, Mapping, Tuple

_LETTERS = re.compile(r"[A-Za-z]+")
_DIGITS = re.compile(r"[0-9]+")
# No memory holds such a size, so a larger number is a typing error.
LARGEST = 2**40
# Characters of a long text that are shown on either side of a mistake.
SHOWN_AROUND = 60


class ProblemError(ValueError):
    """A problem that is malformed or contradictory; the message shows where."""


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """The entries of a problem string, before anything is deduced; `places` are their positions."""

    text: str
    values: Mapping[str, int]
    places: Mapping[str, int]
    name: str = ""

    def build_error(self, entry: str, message: str) -> ProblemError:
        """Return an error that points at an entry, or at the end if the entry is missing."""
        return build_error_at(self.text, self.places.get(entry, len(self.text)), message)


def build_error_at(text: str, place: int, message: str) -> ProblemError:
    """Return an error with a caret under a character; a long text is shortened around it."""
    first, last = max(0, place - SHOWN_AROUND), place + SHOWN_AROUND
    before, after = "…" if first else "", "…" if last < len(text) else ""
    return ProblemError(f"{message}\n  {before}{text[first:last]}{after}\n  {' ' * (place - first + len(before))}^")


def parse_size(text: str, place: int, digits: str, of: str = "") -> int:
    """Convert digits to a number; raise ProblemError if it is larger than any memory."""
    digits = digits.lstrip("0") or "0"
    # The length is checked first, because Python rejects thousands of digits.
    if len(digits) > len(str(LARGEST)) or int(digits) > LARGEST:
        shown = of + digits if len(digits) <= SHOWN_AROUND else f"a number of {len(digits)} digits"
        raise build_error_at(text, place, f"{shown} is larger than any memory")
    return int(digits)


def parse_descriptor(text: str, entries: Tuple[str, ...], notation: str) -> Descriptor:
    """Parse the entries of a string like `mb2_ic16ih10_n"first"`; raise ProblemError for a mistake."""
    values: Dict[str, int] = {}
    places: Dict[str, int] = {}
    place = 0
    while place < len(text):
        if text[place] == "_":
            place += 1
            continue
        entry = next((e for e in entries if text.startswith(e, place)), None)
        if entry is None:
            if text[place] == "n":
                return Descriptor(text, values, places, _parse_name(text, place + 1))
            raise build_error_at(text, place, _explain_unknown(text, place, entries, notation))
        value = _parse_number(text, place, entry)
        if values.get(entry, value) != value:
            raise build_error_at(text, place, f"{notation}: {entry} is given twice, as {values[entry]} and {value}")
        values[entry], places[entry] = value, place
        place += len(entry) + len(_DIGITS.match(text, place + len(entry)).group())  # type: ignore[union-attr]
    return Descriptor(text, values, places)


def _parse_number(text: str, place: int, entry: str) -> int:
    digits = _DIGITS.match(text, place + len(entry))
    if digits is None:
        raise build_error_at(text, place + len(entry), f"{entry} must be followed by a whole number")
    return parse_size(text, place + len(entry), digits.group(), entry)


def _parse_name(text: str, place: int) -> str:
    name = text[place:]
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1]
    for number, letter in enumerate(text[place:]):
        if letter.isspace():
            raise build_error_at(text, place + number, "the name of a problem must not contain spaces")
    return name.strip('"')


def _explain_unknown(text: str, place: int, entries: Tuple[str, ...], notation: str) -> str:
    letters = _LETTERS.match(text, place)
    if letters is None:
        return f"{notation}: {text[place]!r} is not an entry; valid: {', '.join(entries)} and n for the name"
    unknown = letters.group()
    similarity = {entry: difflib.SequenceMatcher(None, unknown, entry).ratio() for entry in entries}
    near = [entry for entry in entries if similarity[entry] == max(similarity.values()) > 0.5]
    # Several equally similar entries give no useful hint.
    hint = f"did you mean {near[0]!r}? " if len(near) == 1 else ""
    return f"{notation}: unknown entry {unknown!r}; {hint}valid: {', '.join(entries)} and n for the name"
