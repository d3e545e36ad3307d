"""Text from records, made safe for a page: it cannot affect the browser or the reading order."""

import re
from typing import Any

from markupsafe import Markup, escape

from corewise.text_format import PLAIN_BACKTICK

# Control characters, lone surrogates and bidirectional marks; each is replaced by U+FFFD.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
# An interval such as 113–169 stays on one line.
_RANGE = re.compile(r"\d[\d.,]*–\d[\d.,]*")
_CODE = re.compile(r"`([^`]+)`")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)")
_NOT_IN_ID = re.compile(r"[^a-z0-9]+")


def clean(text: str) -> str:
    """Replace unsafe characters, normalise line ends and restore the backticks of values."""
    seen = _UNSEEN.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return seen.replace(PLAIN_BACKTICK, "`")


def clean_values(value: Any) -> Any:
    """Clean every text in a JSON-like value, including the names of fields."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_values(item) for item in value]
    return value


def render_prose(text: str) -> Markup:
    """Render the text as HTML; text between backticks becomes code."""
    pieces = [clean(piece) for piece in _CODE.split(text)]
    markup = [
        Markup("<code>{}</code>").format(piece) if i % 2 else _keep_ranges_whole(piece)
        for i, piece in enumerate(pieces)
    ]
    return Markup("").join(markup)


def _keep_ranges_whole(text: str) -> Markup:
    return Markup(_RANGE.sub(lambda match: f'<span class="range">{match[0]}</span>', escape(text)))


def format_time(moment: str) -> str:
    """Format an ISO 8601 time for readers; return any other text unchanged."""
    match = _MOMENT.fullmatch(moment)
    return f"{match[1]} {match[2]} UTC" if match else moment


class IdRegistry:
    """Creates unique ids for the parts of a page, readable in a link."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def create(self, prefix: str, key: str) -> str:
        """Create `prefix-key` in lower case, with a number at the end if it is taken."""
        slug = _NOT_IN_ID.sub("-", key.lower())[:80].strip("-")
        first = f"{prefix}-{slug}" if slug else prefix
        name, number = first, 1
        while name in self._taken:
            number += 1
            name = f"{first}-{number}"
        self._taken.add(name)
        return name
