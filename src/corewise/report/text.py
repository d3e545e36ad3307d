"""Text from records as a page may hold it: nothing in it can steer the browser or the reading order."""

import re
from typing import Any

from markupsafe import Markup, escape

from corewise.report.model import PLAIN_BACKTICK

# Control characters, halves of a pair and marks that reorder what follows them; U+FFFD stands in for each.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_CODE = re.compile(r"`([^`]+)`")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)")
_NOT_IN_ID = re.compile(r"[^a-z0-9]+")


def clean(text: str) -> str:
    """The text with nothing unseen in it; line ends as newlines, the backticks of values as they were."""
    seen = _UNSEEN.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return seen.replace(PLAIN_BACKTICK, "`")


def clean_values(value: Any) -> Any:
    """A JSON-like value with every text in it cleaned, names of fields included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_values(item) for item in value]
    return value


def prose(text: str) -> Markup:
    """The text as HTML; what stands between backticks is set as code."""
    pieces = [clean(piece) for piece in _CODE.split(text)]
    made = [
        Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece) for i, piece in enumerate(pieces)
    ]
    return Markup("").join(made)


def plain_time(moment: str) -> str:
    """A moment in ISO 8601 as people read it; what is none comes back as it is."""
    match = _MOMENT.fullmatch(moment)
    return f"{match[1]} {match[2]} UTC" if match else moment


class Ids:
    """Gives each part of a page a name of its own, readable in a link."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, kind: str, key: str) -> str:
        """`kind-key` in lower case, with a number behind it when taken."""
        slug = _NOT_IN_ID.sub("-", key.lower())[:80].strip("-")
        first = f"{kind}-{slug}" if slug else kind
        name, num_tries = first, 1
        while name in self._taken:
            num_tries += 1
            name = f"{first}-{num_tries}"
        self._taken.add(name)
        return name
