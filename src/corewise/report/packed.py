"""Data inside a page: tables column by column, squeezed, and kept within a number of bytes."""

import base64
import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from corewise.report.model import Table
from corewise.report.text import clean_values

PLAIN_BYTES = 2000  # what is smaller stays readable and needs no unpacking
DIGITS = (6, 4)  # significant digits kept; the fewer when the page would grow too large
_NOT_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Block:
    """Data as it stands in a script element that no browser runs."""

    text: str
    encoding: str  # "json", or "gzip": base64 of compressed JSON


@dataclass(frozen=True)
class PackedTable:
    """A table's data, and how many of its rows they hold."""

    block: Block
    num_rows: int


def packed(value: Any) -> Block:
    """The value as JSON, compressed where that pays."""
    raw = orjson.dumps(clean_values(value), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    if len(raw) < PLAIN_BYTES:
        return Block(_script_safe(raw.decode()), "json")
    return _squeezed(raw)


def packed_tables(tables: Sequence[Table], budget_bytes: int) -> list[PackedTable]:
    """The tables in no more than so many bytes: digits go first, then the last rows of the largest."""
    made: list[PackedTable] = []
    for digits in DIGITS:
        made = [_packed_table(table, len(table.rows), digits) for table in tables]
        if _size_bytes(made) <= budget_bytes:
            return made
    while (excess := _size_bytes(made) - budget_bytes) > 0:
        largest = max(range(len(made)), key=lambda i: len(made[i].block.text))
        size, num_rows = len(made[largest].block.text), made[largest].num_rows
        if num_rows <= 1:
            break
        kept = int(num_rows * max(0.0, 1 - 1.02 * excess / size))
        made[largest] = _packed_table(tables[largest], max(1, min(kept, num_rows - 1)), DIGITS[-1])
    return made


def _size_bytes(made: Sequence[PackedTable]) -> int:
    return sum(len(one.block.text) for one in made)


def _packed_table(table: Table, num_rows: int, digits: int) -> PackedTable:
    rows = table.rows[:num_rows]
    # A row that is too short or too long must not shift the columns of others.
    columns = [
        _column([row[i] if i < len(row) else None for row in rows], digits) for i in range(len(table.columns))
    ]
    value = {
        "columns": [clean_values(vars(column)) for column in table.columns],
        "num_rows": num_rows,
        "best": [place for place in table.best_rows if 0 <= place < num_rows],
        "values": columns,
    }
    raw = orjson.dumps(value)
    block = Block(_script_safe(raw.decode()), "json") if len(raw) < PLAIN_BYTES else _squeezed(raw)
    return PackedTable(block, num_rows)


def _column(values: Sequence[Any], digits: int) -> Any:
    """The values in order; texts as their places in a list of the distinct ones."""
    kinds = set(map(type, values))
    if kinds <= {float, type(None)}:  # the common cases quickly: a store has many rows
        return [None if value is None else _rounded(value, digits) for value in values]
    shown = values if kinds == {str} else [_cell(value, digits) for value in values]
    if str not in set(map(type, shown)):
        return shown
    places: dict[Any, int] = {}
    codes = [places.setdefault((type(value), value), len(places)) for value in shown]
    return {"distinct": clean_values([value for _, value in places]), "places": codes}


def _cell(value: Any, digits: int) -> Any:
    if hasattr(value, "item"):  # a number of numpy's
        value = value.item()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else float(value)
    return _rounded(value, digits) if isinstance(value, float) else str(value)


def _rounded(value: float, digits: int) -> float | str | None:
    if math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return None if math.isnan(value) else ("∞" if value > 0 else "-∞")


def _squeezed(raw: bytes) -> Block:
    return Block(base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode(), "gzip")


def _script_safe(text: str) -> str:
    for char, escaped in _NOT_IN_SCRIPT.items():
        text = text.replace(char, escaped)
    return text


def cut_note(table: Table, packed_table: PackedTable) -> Table:
    """The table with a word in its caption about rows that the page has no room for."""
    total = len(table.rows)
    if packed_table.num_rows == total:
        return table
    held = f"the first {packed_table.num_rows:,} of {total:,} rows"
    note = f"The page has room for {held}; `corewise export` gives all."
    return replace(table, caption=f"{table.caption} {note}".strip())
