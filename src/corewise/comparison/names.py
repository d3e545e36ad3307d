"""Trials in a few words: what sets each apart from the others."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corewise.comparison.sides import DEFAULTS
from corewise.report.words import named, shown
from corewise.workloads.custom import is_custom

_ALWAYS = ("workload", "mode")
# Worth saying of all pairs even when they have their usual value.
_ALWAYS_TOLD = ("runtime", "device", "processes", "threads", "batch", "dtype")


class Namer:
    """Gives each point its name; names nothing that all points share, nor what differs by design."""

    def __init__(self, points: Iterable[Mapping[str, Any]], ignored: frozenset[str]) -> None:
        constant: dict[str, Any] = {}
        names: dict[str, None] = {}  # in the order they come
        for number, point in enumerate(points):
            if number == 0:
                constant = dict(point)
            if not names.keys() >= point.keys():
                names |= dict.fromkeys(point)
            for name in [name for name, value in constant.items() if point.get(name, ...) != value]:
                del constant[name]
        told = [name for name in names if name not in ignored]
        self._varying = [name for name in told if name not in constant and name not in _ALWAYS]
        self._constant = {name: constant[name] for name in told if name in constant}
        self._words: dict[tuple[str, str], str] = {}

    @property
    def common(self) -> dict[str, Any]:
        """What all points share, as far as a reader has to know it."""
        return {
            name: value
            for name, value in self._constant.items()
            if name not in _ALWAYS and (name in _ALWAYS_TOLD or DEFAULTS.get(name, ...) != value)
        }

    def __call__(self, point: Mapping[str, Any]) -> str:
        words = [self._word(name, point[name]) for name in (*_ALWAYS, *self._varying) if name in point]
        return " ".join(words)

    def _word(self, name: str, value: Any) -> str:
        known = (name, repr(value))
        if known not in self._words:
            self._words[known] = _word(name, value)
        return self._words[known]


def _word(name: str, value: Any) -> str:
    if name == "workload":
        return shown(Path(value).name if is_custom(str(value)) else value)
    return shown(value) if name == "mode" else f"{named(name)}={shown(value)}"
