"""The letters and numbers of a problem as benchdnn writes them, read; a mistake is pointed at.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Dict, Mapping, Tuple

_LETTERS = re.compile(r"[A-Za-z]+")
_DIGITS = re.compile(r"[0-9]+")
LARGEST = 2**40  # a size no memory holds: more digits are a slip
SHOWN_AROUND = 60  # characters of a long text on either side of a mistake


class ProblemError(ValueError):
    """A problem that cannot be read or contradicts itself; the text shows where."""


@dataclasses.dataclass(frozen=True)
class Descriptor:
    """What a problem string says, before anything is deduced."""

    text: str
    values: Mapping[str, int]
    places: Mapping[str, int]  # where each entry begins in the text
    name: str = ""

    def mistake(self, entry: str, what: str) -> ProblemError:
        """An error that points at an entry, or at the end where it is missing."""
        return pointed_at(self.text, self.places.get(entry, len(self.text)), what)


def pointed_at(text: str, place: int, what: str) -> ProblemError:
    """The error, with a caret under the character it speaks of; of a long text only what is near."""
    first, last = max(0, place - SHOWN_AROUND), place + SHOWN_AROUND
    before, after = "…" if first else "", "…" if last < len(text) else ""
    return ProblemError(
        f"{what}\n  {before}{text[first:last]}{after}\n  {' ' * (place - first + len(before))}^"
    )


def size_in(text: str, place: int, digits: str, of: str = "") -> int:
    """The number that digits of a text say; ProblemError where no memory holds so many."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(LARGEST)) or int(digits) > LARGEST:  # Python refuses to read thousands of digits
        told = of + digits if len(digits) <= SHOWN_AROUND else f"a number of {len(digits)} digits"
        raise pointed_at(text, place, f"{told} is larger than any memory")
    return int(digits)


def read_descriptor(text: str, entries: Tuple[str, ...], kind: str) -> Descriptor:
    """The entries of a string such as `mb2_ic16ih10_n"first"`; raises ProblemError."""
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
                return Descriptor(text, values, places, _name(text, place + 1))
            raise pointed_at(text, place, _unknown(text, place, entries, kind))
        value = _number(text, place, entry)
        if values.get(entry, value) != value:
            raise pointed_at(text, place, f"{kind}: {entry} is given twice, as {values[entry]} and {value}")
        values[entry], places[entry] = value, place
        place += len(entry) + len(_DIGITS.match(text, place + len(entry)).group())  # type: ignore[union-attr]
    return Descriptor(text, values, places)


def _number(text: str, place: int, entry: str) -> int:
    found = _DIGITS.match(text, place + len(entry))
    if found is None:
        raise pointed_at(text, place + len(entry), f"{entry} needs a whole number right behind it")
    return size_in(text, place + len(entry), found.group(), entry)


def _name(text: str, place: int) -> str:
    name = text[place:]
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1]
    for number, letter in enumerate(text[place:]):
        if letter.isspace():
            raise pointed_at(text, place + number, "a problem's name has no spaces")
    return name.strip('"')


def _unknown(text: str, place: int, entries: Tuple[str, ...], kind: str) -> str:
    letters = _LETTERS.match(text, place)
    if letters is None:
        return f"{kind}: {text[place]!r} is no entry; it takes {', '.join(entries)} and n for the name"
    word = letters.group()
    likeness = {entry: difflib.SequenceMatcher(None, word, entry).ratio() for entry in entries}
    near = [entry for entry in entries if likeness[entry] == max(likeness.values()) > 0.5]
    hint = f"did you mean {near[0]!r}? " if len(near) == 1 else ""  # of many alike, none is likelier
    return f"{kind}: unknown entry {word!r}; {hint}it takes {', '.join(entries)} and n for the name"
