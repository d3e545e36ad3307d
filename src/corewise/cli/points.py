"""Points of a study as a table: what varies in columns, what does not in one line."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

# What every trial has and few studies touch; said only when it is not the default.
HIDDEN_DEFAULTS = {
    "oversubscribe": False,
    "reserved_cores": 0,
    "interop_threads": None,
    "smt": False,
    "pinned_memory": False,
    "bind": "rank",
    "freezing": "none",
    "float32_precision": "default",
    "denormals": "default",
    "huge_pages": "default",
}


def as_written(value: Any) -> str:
    """A value as a study or `--set` writes it: null, true and false, not Python's words."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def constant_and_varying(points: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The constant parameters as one line, and the names of the varying ones in order.

    A parameter of one workload among several is constant when all points that have it agree.
    """
    values: dict[str, dict[str, Any]] = {}
    for point in points:
        for name, value in point.items():
            values.setdefault(name, {})[repr(value)] = value
    varying = [name for name, seen in values.items() if len(seen) > 1]
    constant = [
        f"{name}={as_written(value)}"
        for name, seen in values.items()
        for value in seen.values()
        if len(seen) == 1 and HIDDEN_DEFAULTS.get(name, ...) != value
    ]
    return " ".join(constant), varying


def points_table(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> "Table":
    """A table with parameter columns first, then what else is known of each point."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    if not rows:
        return table
    for name in (*rows[0][0], *rows[0][1]):
        table.add_column(name.removeprefix("args."))
    for params, others in rows:
        table.add_row(*(escape(as_written(v)) for v in (*params.values(), *others.values())))
    return table
