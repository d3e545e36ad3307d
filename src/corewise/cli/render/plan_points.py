"""Tables of the points of a study: varying parameters in columns, constant ones in one line."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

# Parameters that few studies change; they are shown only if they differ from these defaults.
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


def format_value(value: Any) -> str:
    """Format a value as in a study file or `--set`: null, true and false, not None, True and False."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def split_constants(points: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Return the constant parameters as one line, and the names of the varying ones in order.

    A parameter that only some workloads have is constant if all points that have it agree.
    """
    values: dict[str, dict[str, Any]] = {}
    for point in points:
        for name, value in point.items():
            values.setdefault(name, {})[repr(value)] = value
    varying = [name for name, seen in values.items() if len(seen) > 1]
    constant = [
        f"{name}={format_value(value)}"
        for name, seen in values.items()
        for value in seen.values()
        if len(seen) == 1 and HIDDEN_DEFAULTS.get(name, ...) != value
    ]
    return " ".join(constant), varying


def make_points_table(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]) -> "Table":
    """Return a table with the parameters of each point first, then its other columns."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    if not rows:
        return table
    for name in (*rows[0][0], *rows[0][1]):
        table.add_column(name.removeprefix("args."))
    for params, others in rows:
        table.add_row(*(escape(format_value(v)) for v in (*params.values(), *others.values())))
    return table
