"""Data blocks inside a page: tables by column, compressed, within a size budget."""

import base64
import gzip
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from corewise.report.report_model import Table
from corewise.report.text_blocks import clean_values

# Smaller blocks stay readable JSON.
PLAIN_BYTES = 2000
# Significant digits of numbers; the second value applies when the page would grow too large.
DIGITS = (6, 4)
_NOT_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class DataBlock:
    """Data of a script element that no browser runs, as "json" or "gzip" (base64 of compressed JSON)."""

    text: str
    encoding: str


@dataclass(frozen=True)
class PackedTable:
    """The data of a table, and how many of its rows they hold."""

    block: DataBlock
    num_rows: int


def pack_value(value: Any) -> DataBlock:
    """Pack the value as JSON, compressed where that pays off."""
    raw = orjson.dumps(clean_values(value), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    if len(raw) < PLAIN_BYTES:
        return DataBlock(_escape_for_script(raw.decode()), "json")
    return _compress(raw)


def pack_tables(tables: Sequence[Table], budget_bytes: int) -> list[PackedTable]:
    """Pack the tables into at most `budget_bytes`: fewer digits first, then fewer rows of the largest."""
    packed_tables: list[PackedTable] = []
    for digits in DIGITS:
        packed_tables = [_pack_table(table, len(table.rows), digits) for table in tables]
        if _count_bytes(packed_tables) <= budget_bytes:
            return packed_tables
    while (excess := _count_bytes(packed_tables) - budget_bytes) > 0:
        largest = max(range(len(packed_tables)), key=lambda i: len(packed_tables[i].block.text))
        size, num_rows = len(packed_tables[largest].block.text), packed_tables[largest].num_rows
        if num_rows <= 1:
            break
        num_left = int(num_rows * max(0.0, 1 - 1.02 * excess / size))
        packed_tables[largest] = _pack_table(tables[largest], max(1, min(num_left, num_rows - 1)), DIGITS[-1])
    return packed_tables


def _count_bytes(packed_tables: Sequence[PackedTable]) -> int:
    return sum(len(each.block.text) for each in packed_tables)


def _pack_table(table: Table, num_rows: int, digits: int) -> PackedTable:
    rows = table.rows[:num_rows]
    # A row that is too short or too long must not shift the columns of others.
    columns = [
        _pack_column([row[i] if i < len(row) else None for row in rows], digits) for i in range(len(table.columns))
    ]
    value = {
        "columns": [clean_values(vars(column)) for column in table.columns],
        "num_rows": num_rows,
        "best": [place for place in table.best_rows if 0 <= place < num_rows],
        "values": columns,
    }
    raw = orjson.dumps(value)
    block = DataBlock(_escape_for_script(raw.decode()), "json") if len(raw) < PLAIN_BYTES else _compress(raw)
    return PackedTable(block, num_rows)


def _pack_column(values: Sequence[Any], digits: int) -> Any:
    """Return the values in order; texts as indices into a list of the distinct ones."""
    types = set(map(type, values))
    # Columns of one type are common, and a store has many rows.
    if types <= {float, type(None)}:
        return [None if value is None else _round(value, digits) for value in values]
    cells = values if types == {str} else [_convert_cell(value, digits) for value in values]
    if str not in set(map(type, cells)):
        return cells
    places: dict[Any, int] = {}
    codes = [places.setdefault((type(value), value), len(places)) for value in cells]
    return {"distinct": clean_values([value for _, value in places]), "places": codes}


def _convert_cell(value: Any, digits: int) -> Any:
    # NumPy scalars have `item`.
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else float(value)
    return _round(value, digits) if isinstance(value, float) else str(value)


def _round(value: float, digits: int) -> float | str | None:
    if math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return None if math.isnan(value) else ("∞" if value > 0 else "-∞")


def _compress(raw: bytes) -> DataBlock:
    return DataBlock(base64.b64encode(gzip.compress(raw, compresslevel=6, mtime=0)).decode(), "gzip")


def _escape_for_script(text: str) -> str:
    for char, escaped in _NOT_IN_SCRIPT.items():
        text = text.replace(char, escaped)
    return text


def add_cut_note(table: Table, packed_table: PackedTable) -> Table:
    """Add a note to the caption if the page has no room for all rows."""
    total = len(table.rows)
    if packed_table.num_rows == total:
        return table
    rows = f"the first {packed_table.num_rows:,} of {total:,} rows"
    note = f"The page holds {rows}; `corewise export` writes all of them."
    return replace(table, caption=f"{table.caption} {note}".strip())
