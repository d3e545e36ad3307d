"""Short names of trials: the parameters that distinguish each from the others."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corewise.analysis.comparison.sides import DEFAULTS
from corewise.analysis.result_tables import ALWAYS_SHOWN
from corewise.measured.workloads.custom import is_custom
from corewise.text_format import format_parameter_name, format_value

_ALWAYS = ("workload", "mode")


class TrialNamer:
    """Names points by their varying parameters, except those that differ by design."""

    def __init__(self, points: Iterable[Mapping[str, Any]], ignored: frozenset[str]) -> None:
        constant: dict[str, Any] = {}
        names: dict[str, None] = {}
        for number, point in enumerate(points):
            if number == 0:
                constant = dict(point)
            if not names.keys() >= point.keys():
                names |= dict.fromkeys(point)
            for name in [name for name, value in constant.items() if point.get(name, ...) != value]:
                del constant[name]
        listed = [name for name in names if name not in ignored]
        self._varying = [name for name in listed if name not in constant and name not in _ALWAYS]
        self._constant = {name: constant[name] for name in listed if name in constant}
        self._texts: dict[tuple[str, str], str] = {}

    @property
    def common(self) -> dict[str, Any]:
        """The notable parameters that all points share."""
        return {
            name: value
            for name, value in self._constant.items()
            if name not in _ALWAYS and (name in ALWAYS_SHOWN or DEFAULTS.get(name, ...) != value)
        }

    def __call__(self, point: Mapping[str, Any]) -> str:
        texts = [self._describe_param(name, point[name]) for name in (*_ALWAYS, *self._varying) if name in point]
        return " ".join(texts)

    def _describe_param(self, name: str, value: Any) -> str:
        known = (name, repr(value))
        if known not in self._texts:
            self._texts[known] = _format_param(name, value)
        return self._texts[known]


def _format_param(name: str, value: Any) -> str:
    if name == "workload":
        return format_value(Path(value).name if is_custom(str(value)) else value)
    return format_value(value) if name == "mode" else f"{format_parameter_name(name)}={format_value(value)}"
