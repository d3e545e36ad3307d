"""Read the sections of a study file that depend on the table of axes, value by value."""

import os
from collections.abc import Callable, Mapping
from graphlib import CycleError
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from corewise.measured.parameters import GENERATED_DATA
from corewise.study.axes import (
    AXES,
    CHOICE_VALUES,
    EXPRESSION_NAMES,
    FLAG_NAMES,
    MULTI_VALUE_KEYWORDS,
    AxisValue,
    Keyword,
    check_axis_name,
    order_by_dependency,
    read_axis_value,
)
from corewise.study.syntax.expressions import Expression, ExpressionError, parse_condition
from corewise.study.syntax.yaml_lines import Document, Key, Mistake

P = ParamSpec("P")
T = TypeVar("T")


class SectionReader:
    """Reads sections one by one and collects every mistake with its line."""

    def __init__(self, document: Document, folder: Path) -> None:
        self.document = document
        self.folder = folder
        self.mistakes = list[Mistake]()

    def add_mistake(self, key: Key, message: str) -> None:
        self.mistakes.append(Mistake(self.document.find_origin(key), message))

    def try_read(self, key: Key, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, ...]:
        """Return the result of `read` in a tuple, or an empty one if it raised a ValueError."""
        try:
            return (read(*args, **kwargs),)
        except ValueError as error:
            self.add_mistake(key, str(error))
            return ()

    def read_axes(self) -> dict[str, tuple[AxisValue, ...]]:
        """Return the values of each axis, in the order of the file."""
        return {name: self._read_axis(name, given) for name, given in self._read_named_values("axes").items()}

    def read_fixed(self) -> dict[str, AxisValue]:
        """Return the value of each axis that does not vary."""
        values: dict[str, AxisValue] = {}
        for name, given in self._read_named_values("fixed").items():
            for value in self._read_value(("fixed", name), name, given):
                if isinstance(value, Keyword) and value.text in MULTI_VALUE_KEYWORDS:
                    self.add_mistake(("fixed", name), f"{value.text} gives several values; move {name} to axes")
                values[name] = value
        return values

    def check_consistency(self, axes: Mapping[str, tuple[AxisValue, ...]], fixed: Mapping[str, AxisValue]) -> None:
        """Report axes that are given twice and axes that depend on each other."""
        for name in axes.keys() & fixed.keys():
            lines = " and ".join(str(self.document.find_origin((section, name))) for section in ("axes", "fixed"))
            self.add_mistake(("fixed", name), f"{name} is in both axes and fixed ({lines}); keep one")
        try:
            order_by_dependency(list_candidates(axes, fixed))
        except CycleError as error:
            cycle = [str(name) for name in error.args[1]]
            given = next(name for name in cycle if name in axes or name in fixed)
            section = "axes" if given in axes else "fixed"
            self.add_mistake((section, given), f"{' needs '.join(cycle)}; give one of them plain values")

    def read_constraints(self) -> tuple[tuple[Expression, str], ...]:
        """Return each constraint with its place in the file."""
        return tuple(
            (condition, str(self.document.find_origin(key)))
            for key, text in self._read_texts("constraints")
            for condition in self.try_read(key, _parse_condition, text)
        )

    def read_workloads(self) -> dict[str, str]:
        """Return the place of each workload in the file; paths of user files become absolute."""
        places: dict[str, str] = {}
        for key, text in self._read_texts("workload"):
            for name in self.try_read(key, self._read_workload, text, key):
                places.setdefault(name, str(self.document.find_origin(key)))
        return places

    def resolve_path(self, text: str, key: Key) -> str:
        """Return the absolute path, relative to the study file, or to the current folder for `--set`."""
        from_file = self.document.find_origin(key).line > 0
        return os.path.abspath(os.path.join(self.folder if from_file else "", os.path.expanduser(text)))

    def _read_texts(self, section: str) -> list[tuple[Key, str]]:
        """Return the texts of a section with one or several; other types are reported elsewhere."""
        given = self.document.value.get(section)
        items = given if isinstance(given, list) else [given]
        return [((section, index), item) for index, item in enumerate(items) if isinstance(item, str)]

    def _read_named_values(self, section: str) -> dict[str, Any]:
        given = self.document.value.get(section)
        named: dict[str, Any] = {}
        for name, value in given.items() if isinstance(given, dict) else ():
            if self.try_read((section, name), check_axis_name, name):
                named[name] = value
        return named

    def _read_axis(self, name: str, given: Any) -> tuple[AxisValue, ...]:
        takes_null = name in AXES and AXES[name].takes_null
        if given in ([], {}) or (given is None and not takes_null):
            self.add_mistake(("axes", name), f"the axis {name} is empty; give it values or remove it")
            return ()
        items = given if isinstance(given, list) else [given]
        return tuple(
            value for index, item in enumerate(items) for value in self._read_value(("axes", name, index), name, item)
        )

    def _read_value(self, key: Key, name: str, given: Any) -> tuple[AxisValue, ...]:
        def read() -> AxisValue:
            if key[0] == "fixed" and isinstance(given, list):
                raise ValueError(f"fixed takes one value of {name}, not a list; move it to axes")
            value = read_axis_value(name, given)
            if name == "data" and value not in GENERATED_DATA:
                return self.resolve_path(str(value), key)
            return value

        return self.try_read(key, read)

    def _read_workload(self, text: str, key: Key) -> str:
        file, colon, factory = text.rpartition(":")
        if not colon:
            if text.endswith(".py"):
                raise ValueError(f"{text!r} does not say which factory to call; write {text}:FACTORY")
            return text
        if not factory.isidentifier() or not file.endswith(".py"):
            raise ValueError(f"{text!r} is neither the name of a workload nor path.py:FACTORY")
        path = self.resolve_path(file, key)
        if not os.path.isfile(path):
            raise ValueError(f"no such file: {path}; write your own workload as path.py:FACTORY")
        return f"{path}:{factory}"


def list_candidates(
    axes: Mapping[str, tuple[AxisValue, ...]], fixed: Mapping[str, AxisValue]
) -> dict[str, tuple[AxisValue, ...]]:
    """Return the values of every axis: varied axes in the file's order, then fixed and default ones."""
    singles = {**{axis.name: axis.default for axis in AXES.values()}, **fixed}
    return {**axes, **{name: (value,) for name, value in singles.items() if name not in axes}}


def _parse_condition(text: str) -> Expression:
    try:
        return parse_condition(text, EXPRESSION_NAMES, FLAG_NAMES, CHOICE_VALUES)
    except ExpressionError as error:
        raise ValueError(f"constraint: {error}") from None
