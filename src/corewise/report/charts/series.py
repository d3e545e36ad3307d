"""Which trials a chart shows: one parameter on the x axis, one as colour, one as shape, the rest fixed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.analysis.columns import find_largest_each
from corewise.analysis.groups import WIDTHS, Group
from corewise.analysis.phrases import describe_value, format_axis_title
from corewise.stats.values import Values
from corewise.text_format import format_count, format_list

MAX_COLOURS = 6
MAX_SHAPES = 3
# Points of one chart.
MAX_POINTS = 1500
_ACROSS = ("threads", "processes", "batch", "interop_threads", "loader_workers")
_COLOUR_FIRST = ("machine", "store", "version", "batch", "math", "memory_format", "dtype")


@dataclass(frozen=True)
class SeriesLayout:
    """How varying parameters are laid out in a chart: an empty `colour` means one line.

    `colours` and `shapes` are the values shown; `notes` say what is left out.
    """

    x: str
    colour: str = ""
    shape: str = ""
    rest: tuple[str, ...] = ()
    colours: tuple[Any, ...] = ()
    shapes: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()


def find_numeric_axes(group: Group) -> list[str]:
    """Return the numeric axes that vary, the most interesting one first."""
    names = [name for name in group.axes if group.is_number(name)]
    return sorted(names, key=lambda name: _ACROSS.index(name) if name in _ACROSS else len(_ACROSS))


def find_node_axis(group: Group) -> list[str]:
    """Return the axis of nodes if it varies, otherwise nothing."""
    return [name for name in ("nodes",) if name in group.axes and group.is_number(name)]


def has_constant_cores(group: Group) -> bool:
    """Return True if processes × threads is constant, so that neither varies alone."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return False
    return np.unique(group.get_numbers("processes") * group.get_numbers("threads")).size == 1


def choose_layout(group: Group, x: str, without: Sequence[str] = ()) -> SeriesLayout:
    """Choose the layout of a chart with this parameter on the x axis."""
    left = [name for name in group.varying if name != x and name not in without]
    left.sort(key=lambda name: _COLOUR_FIRST.index(name) if name in _COLOUR_FIRST else len(_COLOUR_FIRST))
    colour = left[0] if left else ""
    few = [name for name in left[1:] if len(group.list_values(name)) <= MAX_SHAPES]
    shape = few[0] if few else ""
    notes: list[str] = []
    colours = _choose_values(group, colour, MAX_COLOURS, notes) if colour else []
    shapes = group.list_values(shape) if shape else []
    rest = tuple(name for name in left if name not in (colour, shape))
    return SeriesLayout(x, colour, shape, rest, tuple(colours), tuple(shapes), tuple(notes))


def _choose_values(group: Group, name: str, most: int, notes: list[str]) -> list[Any]:
    """Return the values of a parameter, or `most` of them: numbers spread evenly, others the fastest."""
    values = group.list_values(name)
    if len(values) <= most:
        return values
    notes.append(f"showing {most} of {len(values):,} values of {format_axis_title(name)}")
    if group.is_number(name):
        return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
    best = np.zeros(len(values))
    np.maximum.at(best, group.columns[name].codes, np.nan_to_num(group.rate))
    return [values[code] for code in np.argsort(-best, kind="stable")[:most]]


def find_fastest_each(group: Group, layout: SeriesLayout, values: Values) -> list[int]:
    """Find the fastest trial at each place of the layout, in order of x."""
    return _find_trials(group, layout, values, np.ones(len(group.records), dtype=bool))


def find_matching_trials(group: Group, layout: SeriesLayout, values: Values, best: int) -> list[int]:
    """Find the trial at each place whose other parameters equal those of the best one, in order of x."""
    rest = group.index_by(layout.rest)
    return _find_trials(group, layout, values, rest == rest[best])


def _find_trials(group: Group, layout: SeriesLayout, values: Values, among: "np.ndarray[Any, Any]") -> list[int]:
    allowed = among & ~np.isnan(values)
    if layout.colour:
        column = group.columns[layout.colour]
        allowed &= np.isin(column.codes, [column.find_code(value) for value in layout.colours])
    numbers = group.index_by([name for name in (layout.x, layout.colour, layout.shape) if name])
    places = find_largest_each(numbers, np.where(allowed, np.nan_to_num(group.rate), np.nan))
    chosen = sorted((int(i) for i in places), key=lambda i: group.points[i][layout.x])
    return limit_points(group, layout, chosen)


def limit_points(group: Group, layout: SeriesLayout, chosen: Sequence[int]) -> list[int]:
    """Return the trials, or those of evenly spread x values where there are too many, including both ends."""
    num_lines = max(1, len(layout.colours)) * max(1, len(layout.shapes))
    xs = sorted({group.points[i][layout.x] for i in chosen})
    most = max(2, MAX_POINTS // num_lines)
    if len(xs) <= most:
        return list(chosen)
    selected = {xs[round(k * (len(xs) - 1) / (most - 1))] for k in range(most)}
    return [i for i in chosen if group.points[i][layout.x] in selected]


def describe_omissions(group: Group, layout: SeriesLayout, drawn: Sequence[int], best: int | None = None) -> str:
    """Describe what a chart does not show, or return ""."""
    notes = list(layout.notes)
    if layout.rest and best is None:
        notes.append(f"showing the fastest over {format_list([format_axis_title(name) for name in layout.rest])}")
    elif layout.rest and best is not None:
        held = [describe_value(name, group.points[best].get(name)) for name in layout.rest]
        notes.append(f"showing only {format_list(held, 6)}, as in the fastest trial")
    xs = {group.points[i][layout.x] for i in drawn}
    num_x = len(group.list_values(layout.x))
    if len(xs) < num_x and not layout.rest and not layout.notes:
        notes.append(f"showing {len(xs):,} of {format_count(num_x, 'value')} of {format_axis_title(layout.x)}")
    text = "; ".join(notes)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
