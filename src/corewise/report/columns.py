"""Values of many records as columns: each parameter as its different values and a number for each record."""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from corewise.spec.record import Record
from corewise.stats.values import Values
from corewise.store.packed import PackedMapping, PackedRuns

Places = npt.NDArray[np.int64]

_LARGEST = 1 << 62


@dataclass(frozen=True)
class Coded:
    """A column: its different values in order, and for each record the place of its own among them."""

    values: Sequence[Any]
    codes: Places

    @cached_property
    def is_number(self) -> bool:
        """True when every value is a number."""
        return all(is_number(value) for value in self.values)

    @cached_property
    def _places(self) -> Mapping[Any, int]:
        return {hashable(value): place for place, value in enumerate(self.values)}

    def code(self, value: Any) -> int:
        """The place of a value; -1 when it does not occur."""
        return self._places.get(hashable(value), -1)


def coded(column: Sequence[Any]) -> Coded:
    """The column with its values numbered in their order; lists and the like become text."""
    keys = keys_of(column)
    found = {key: plain(value) for key, value in dict(zip(keys, column, strict=True)).items()}
    ordered = sorted(found, key=lambda key: order(found[key]))
    place = {key: number for number, key in enumerate(ordered)}
    codes = np.fromiter((place[key] for key in keys), dtype=np.int64, count=len(keys))
    return Coded([found[key] for key in ordered], codes)


class Points(Sequence[Mapping[str, Any]]):
    """What varies of each record, made when asked for."""

    def __init__(self, columns: Mapping[str, Coded], num: int) -> None:
        self._columns, self._num = columns, num

    def __len__(self) -> int:
        return self._num

    @overload
    def __getitem__(self, i: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self._num))]
        k = range(self._num)[i]
        return {name: column.values[column.codes[k]] for name, column in self._columns.items()}


def columns_of(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """Every name with its value in each mapping, None where it is missing."""
    if not mappings:
        return {}
    first = mappings[0]
    if isinstance(first, PackedMapping):
        layout = first.layout
        if all(isinstance(each, PackedMapping) and each.layout is layout for each in mappings):
            rows = (each.values_in_order for each in mappings if isinstance(each, PackedMapping))
            return dict(zip(layout.names, zip(*rows, strict=True), strict=True))
    names = dict.fromkeys(name for each in mappings for name in each)
    return {name: [each.get(name) for each in mappings] for name in names}


def number_columns(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    """Every name with its number in each mapping, NaN where there is none."""
    first = mappings[0] if mappings else None
    if isinstance(first, PackedMapping) and isinstance(first.values_in_order, array):
        same = [m for m in mappings if isinstance(m, PackedMapping) and m.layout is first.layout]
        rows = [m.values_in_order for m in same if isinstance(m.values_in_order, array)]
        if len(rows) == len(mappings):
            figures = np.frombuffer(b"".join(rows)).reshape(len(rows), -1)
            figures = np.where(np.isfinite(figures), figures, np.nan)
            return {name: figures[:, k] for k, name in enumerate(first.layout.names)}
    return {name: floats(column) for name, column in columns_of(mappings).items()}


def combined(columns: Sequence[Places], num: int) -> Places:
    """One number for each record, equal where all the columns are."""
    found, span = np.zeros(num, dtype=np.int64), 1
    for codes in columns:
        width = int(codes.max(initial=0)) + 1
        if span * width > _LARGEST:
            _, found = np.unique(found, return_inverse=True)
            span = int(found.max(initial=0)) + 1
        found, span = found * width + codes, span * width
    return np.asarray(np.unique(found, return_inverse=True)[1], dtype=np.int64)


def members(numbers: Places) -> list[Places]:
    """The places of each number, the numbers in order of their first place."""
    if numbers.size == 0:
        return []
    in_order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[in_order])) + 1
    return sorted(np.split(in_order, cuts), key=lambda places: int(places[0]))


def largest_each(numbers: Places, values: Values) -> Places:
    """The place of the largest value of each number, NaN never; in order of place."""
    known = np.flatnonzero(~np.isnan(values))
    in_order = known[np.lexsort((known, -values[known], numbers[known]))]
    first = np.concatenate(([True], np.diff(numbers[in_order]) != 0)) if in_order.size else np.zeros(0, bool)
    return np.sort(in_order[first])


def floats(column: Sequence[Any]) -> Values:
    """The numbers of a column, NaN for anything else."""
    if not set(map(type, column)) <= {float, type(None)}:
        return np.array([number_or_nan(value) for value in column])
    found = np.array(column, dtype=np.float64)
    found[~np.isfinite(found)] = np.nan
    return found


def run_rates(record: Record) -> list[float]:
    """The throughput of each run that counts."""
    runs = record.runs
    if isinstance(runs, PackedRuns):
        rates = runs.figures[PackedRuns.METRICS.index("samples_per_s") :: len(PackedRuns.METRICS)]
        pairs = zip(rates, runs.statuses, strict=True)
        return [rate for rate, status in pairs if 0 < rate < math.inf and status in ("ok", "")]
    found = []
    for run in runs:
        metrics = run.get("metrics")
        rate = number_or_nan(metrics.get("samples_per_s")) if isinstance(metrics, Mapping) else math.nan
        if rate > 0 and run.get("status", "ok") in ("ok", ""):
            found.append(rate)
    return found


def keys_of(column: Sequence[Any]) -> Sequence[Any]:
    """Something for each value that is equal for equal values only."""
    if set(map(type, column)) <= {str, int, float, type(None)}:
        return column
    return [hashable(value) for value in column]


def hashable(value: Any) -> Any:
    """Something equal for equal values only: 1 and true are not, nor 1 and "1"."""
    kind = type(value)
    if kind is str or kind is int or value is None or kind is float:
        return value
    if kind is bool:
        return ("flag", value)
    return value if isinstance(value, (int, float, str)) else _text(value)


def plain(value: Any) -> Any:
    """The value, as text where it is no single value."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def order(value: Any) -> tuple[int, Any]:
    """A key that puts numbers before text and what is missing last."""
    if isinstance(value, (int, float)):
        return 0, value
    return (2, "") if value is None else (1, str(value))


def number_or_nan(value: Any) -> float:
    """The number, NaN for anything else."""
    return float(value) if is_number(value) and abs(value) < math.inf else math.nan


def is_number(value: Any) -> bool:
    """True for numbers that are no flags."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
