"""The sections of a study file whose meaning only the table of axes knows, checked value by value."""

import os
from collections.abc import Callable, Mapping
from graphlib import CycleError
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from corewise.spec.axes import (
    AXES,
    CHOICE_WORDS,
    EXPRESSION_NAMES,
    FLAG_NAMES,
    SEVERAL_WORDS,
    AxisValue,
    Word,
    check_axis_name,
    evaluation_order,
    read_axis_value,
)
from corewise.spec.expressions import Expression, ExpressionError, parse_condition
from corewise.spec.yaml_lines import Document, Key, Mistake

P = ParamSpec("P")
T = TypeVar("T")


class SectionReader:
    """Reads sections one by one and keeps every mistake with its line."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.document = document
        self.folder = folder
        self.mistakes = list[Mistake]()

    def refuse(self, key: Key, what: str) -> None:
        self.mistakes.append(Mistake(self.document.where(key), what))

    def attempt(self, key: Key, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, ...]:
        """What `read` returns, or nothing when it refuses with a ValueError."""
        try:
            return (read(*args, **kwargs),)
        except ValueError as error:
            self.refuse(key, str(error))
            return ()

    def axes(self) -> dict[str, tuple[AxisValue, ...]]:
        """The values of each axis, in the order of the file."""
        return {name: self._axis(name, given) for name, given in self._named_values("axes").items()}

    def fixed(self) -> dict[str, AxisValue]:
        """The single value of each axis that does not vary."""
        values: dict[str, AxisValue] = {}
        for name, given in self._named_values("fixed").items():
            for value in self._value(("fixed", name), name, given):
                if isinstance(value, Word) and value.text in SEVERAL_WORDS:
                    self.refuse(("fixed", name), f"{value.text} gives several values; move {name} to axes")
                values[name] = value
        return values

    def check_together(
        self, axes: Mapping[str, tuple[AxisValue, ...]], fixed: Mapping[str, AxisValue]
    ) -> None:
        """Refuses an axis given twice, and axes that need each other's value."""
        for name in axes.keys() & fixed.keys():
            lines = " and ".join(str(self.document.where((section, name))) for section in ("axes", "fixed"))
            self.refuse(("fixed", name), f"{name} is in both axes and fixed ({lines}); keep one")
        try:
            evaluation_order(candidates_of_all(axes, fixed))
        except CycleError as error:
            circle = [str(name) for name in error.args[1]]
            given = next(name for name in circle if name in axes or name in fixed)
            section = "axes" if given in axes else "fixed"
            self.refuse((section, given), f"{' needs '.join(circle)}; give one of them plain values")

    def constraints(self) -> tuple[tuple[Expression, str], ...]:
        """Each constraint with its place in the file."""
        return tuple(
            (condition, str(self.document.where(key)))
            for key, text in self._texts("constraints")
            for condition in self.attempt(key, _condition, text)
        )

    def workloads(self) -> dict[str, str]:
        """Each workload, a file of the user's own made absolute, with its place in the file."""
        places: dict[str, str] = {}
        for key, text in self._texts("workload"):
            for name in self.attempt(key, self._workload, text, key):
                places.setdefault(name, str(self.document.where(key)))
        return places

    def absolute(self, text: str, key: Key) -> str:
        """The path a text means: from the study file's folder, or from here when it came by `--set`."""
        from_file = self.document.where(key).line > 0
        return os.path.abspath(os.path.join(self.folder if from_file else "", os.path.expanduser(text)))

    def _texts(self, section: str) -> list[tuple[Key, str]]:
        """The texts of a section that holds one or several; what is no text is refused elsewhere."""
        given = self.document.value.get(section)
        items = given if isinstance(given, list) else [given]
        return [((section, index), item) for index, item in enumerate(items) if isinstance(item, str)]

    def _named_values(self, section: str) -> dict[str, Any]:
        given = self.document.value.get(section)
        named: dict[str, Any] = {}
        for name, value in given.items() if isinstance(given, dict) else ():
            if self.attempt((section, name), check_axis_name, name):
                named[name] = value
        return named

    def _axis(self, name: str, given: Any) -> tuple[AxisValue, ...]:
        takes_null = name in AXES and AXES[name].takes_null
        if given in ([], {}) or (given is None and not takes_null):
            self.refuse(("axes", name), f"the axis {name} is empty; give it values or remove it")
            return ()
        items = given if isinstance(given, list) else [given]
        return tuple(
            value
            for index, item in enumerate(items)
            for value in self._value(("axes", name, index), name, item)
        )

    def _value(self, key: Key, name: str, given: Any) -> tuple[AxisValue, ...]:
        def read() -> AxisValue:
            if key[0] == "fixed" and isinstance(given, list):
                raise ValueError(f"fixed takes one value of {name}, not a list; move it to axes")
            value = read_axis_value(name, given)
            if name == "data" and value != "synthetic":
                return self.absolute(str(value), key)
            return value

        return self.attempt(key, read)

    def _workload(self, text: str, key: Key) -> str:
        file, colon, factory = text.rpartition(":")
        if not colon:
            if text.endswith(".py"):
                raise ValueError(f"{text!r} does not say which factory to call; write {text}:FACTORY")
            return text
        if not factory.isidentifier() or not file.endswith(".py"):
            raise ValueError(f"{text!r} is neither a workload's name nor path.py:FACTORY")
        path = self.absolute(file, key)
        if not os.path.isfile(path):
            raise ValueError(f"no such file: {path}; a workload of your own is written path.py:FACTORY")
        return f"{path}:{factory}"


def candidates_of_all(
    axes: Mapping[str, tuple[AxisValue, ...]], fixed: Mapping[str, AxisValue]
) -> dict[str, tuple[AxisValue, ...]]:
    """Every axis with the values it may take: the axes in the file's order, then what is fixed or default."""
    singles = {**{axis.name: axis.default for axis in AXES.values()}, **fixed}
    return {**axes, **{name: (value,) for name, value in singles.items() if name not in axes}}


def _condition(text: str) -> Expression:
    try:
        return parse_condition(text, EXPRESSION_NAMES, FLAG_NAMES, CHOICE_WORDS)
    except ExpressionError as error:
        raise ValueError(f"constraint: {error}") from None
