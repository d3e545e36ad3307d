"""Columns of parameters and metrics over many records, with distinct values stored once."""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from corewise.stats.values import Values
from corewise.store.compact_values import PackedMapping, PackedRuns
from corewise.study.record import Record

Places = npt.NDArray[np.int64]

_MAX_COMBINED_CODE = 1 << 62
# The data of a page hold integers of 64 bits.
_MAX_EXACT_INTEGER = 1 << 63


@dataclass(frozen=True)
class EncodedColumn:
    """A column as its distinct values in order, and for each record the index of its value among them."""

    values: Sequence[Any]
    codes: Places

    @cached_property
    def is_number(self) -> bool:
        """True if every value is a number."""
        return all(is_number(value) for value in self.values)

    @cached_property
    def _places(self) -> Mapping[Any, int]:
        return {make_hashable(value): place for place, value in enumerate(self.values)}

    def find_code(self, value: Any) -> int:
        """Return the index of a value; -1 if it does not occur."""
        return self._places.get(make_hashable(value), -1)


def encode_column(column: Sequence[Any]) -> EncodedColumn:
    """Encode a column by the order of its values; lists and mappings become JSON text."""
    keys = make_keys(column)
    values = {key: make_plain(value) for key, value in dict(zip(keys, column, strict=True)).items()}
    ordered = sorted(values, key=lambda key: get_order_key(values[key]))
    place = {key: number for number, key in enumerate(ordered)}
    codes = np.fromiter((place[key] for key in keys), dtype=np.int64, count=len(keys))
    return EncodedColumn([values[key] for key in ordered], codes)


class Points(Sequence[Mapping[str, Any]]):
    """The varying parameters of each record, built on access."""

    def __init__(self, columns: Mapping[str, EncodedColumn], num: int) -> None:
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


def build_columns(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Sequence[Any]]:
    """Return for every name its value in each mapping, None if it is missing."""
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


def build_number_columns(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    """Return for every name its number in each mapping, NaN if it has none."""
    first = mappings[0] if mappings else None
    if isinstance(first, PackedMapping) and isinstance(first.values_in_order, array):
        packed = [m for m in mappings if isinstance(m, PackedMapping) and m.layout is first.layout]
        rows = [m.values_in_order for m in packed if isinstance(m.values_in_order, array)]
        if len(rows) == len(mappings):
            figures = np.frombuffer(b"".join(rows)).reshape(len(rows), -1)
            figures = np.where(np.isfinite(figures), figures, np.nan)
            return {name: figures[:, k] for k, name in enumerate(first.layout.names)}
    return {name: parse_numbers(column) for name, column in build_columns(mappings).items()}


def combine_codes(columns: Sequence[Places], num: int) -> Places:
    """Combine columns into one code per record, equal if all columns are equal."""
    combined, span = np.zeros(num, dtype=np.int64), 1
    for codes in columns:
        width = int(codes.max(initial=0)) + 1
        if span * width > _MAX_COMBINED_CODE:
            _, combined = np.unique(combined, return_inverse=True)
            span = int(combined.max(initial=0)) + 1
        combined, span = combined * width + codes, span * width
    return np.asarray(np.unique(combined, return_inverse=True)[1], dtype=np.int64)


def split_by_number(numbers: Places) -> list[Places]:
    """Return the positions of each number, in the order of first occurrence."""
    if numbers.size == 0:
        return []
    in_order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[in_order])) + 1
    return sorted(np.split(in_order, cuts), key=lambda places: int(places[0]))


def find_largest_each(numbers: Places, values: Values) -> Places:
    """Return the position of the largest value of each number, ignoring NaN, in order of position."""
    known = np.flatnonzero(~np.isnan(values))
    in_order = known[np.lexsort((known, -values[known], numbers[known]))]
    first = np.concatenate(([True], np.diff(numbers[in_order]) != 0)) if in_order.size else np.zeros(0, bool)
    return np.sort(in_order[first])


def parse_numbers(column: Sequence[Any]) -> Values:
    """Return the numbers of a column, NaN for anything else."""
    if not set(map(type, column)) <= {float, type(None)}:
        return np.array([parse_number(value) for value in column])
    numbers = np.array(column, dtype=np.float64)
    numbers[~np.isfinite(numbers)] = np.nan
    return numbers


def get_run_rates(record: Record) -> list[float]:
    """Return the throughput of each successful run."""
    runs = record.runs
    if isinstance(runs, PackedRuns):
        rates = runs.figures[PackedRuns.METRICS.index("samples_per_s") :: len(PackedRuns.METRICS)]
        pairs = zip(rates, runs.statuses, strict=True)
        return [rate for rate, status in pairs if 0 < rate < math.inf and status in ("ok", "")]
    run_rates = []
    for run in runs:
        metrics = run.get("metrics")
        rate = parse_number(metrics.get("samples_per_s")) if isinstance(metrics, Mapping) else math.nan
        if rate > 0 and run.get("status", "ok") in ("ok", ""):
            run_rates.append(rate)
    return run_rates


def make_keys(column: Sequence[Any]) -> Sequence[Any]:
    """Return a hashable key for each value, equal only for equal values."""
    if set(map(type, column)) <= {str, int, float, type(None)}:
        return column
    return [make_hashable(value) for value in column]


def make_hashable(value: Any) -> Any:
    """Return a hashable key for a value; 1, true and "1" have different keys."""
    value_type = type(value)
    if value_type is str or value_type is int or value is None or value_type is float:
        return value
    if value_type is bool:
        return ("flag", value)
    return value if isinstance(value, (int, float, str)) else _dump_text(value)


def make_plain(value: Any) -> Any:
    """Return a scalar unchanged, an integer beyond 64 bits as float, and anything else as JSON text."""
    if isinstance(value, int) and abs(value) >= _MAX_EXACT_INTEGER:
        return float(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else _dump_text(value)


def _dump_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def get_order_key(value: Any) -> tuple[int, Any]:
    """Return a sort key: numbers, then text, then missing values."""
    if isinstance(value, (int, float)):
        return 0, value
    return (2, "") if value is None else (1, str(value))


def parse_number(value: Any) -> float:
    """Return a finite number as float, NaN for anything else."""
    return float(value) if is_number(value) and abs(value) < math.inf else math.nan


def is_number(value: Any) -> bool:
    """Return True for int and float, but not for bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
