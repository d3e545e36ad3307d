"""Which trials of a group a chart draws: one axis across, one as colour, one as shape; what of the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corewise.report.columns import largest_each
from corewise.report.groups import WIDTHS, Group
from corewise.report.phrases import axis_title, value_words
from corewise.report.words import counted, listed
from corewise.stats.values import Values

MAX_COLOURS = 6
MAX_SHAPES = 3
MAX_POINTS = 1500  # in one chart
_ACROSS = ("threads", "processes", "batch", "interop_threads", "loader_workers")
_COLOUR_FIRST = ("machine", "store", "version", "batch", "math", "memory_format", "dtype")


@dataclass(frozen=True)
class Layout:
    """How the parameters that vary are laid out in a chart."""

    x: str
    colour: str = ""  # empty: one line
    shape: str = ""
    rest: tuple[str, ...] = ()
    colours: tuple[Any, ...] = ()  # the values drawn
    shapes: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()  # what is left out


def across(group: Group) -> list[str]:
    """The axes of numbers that vary, the one most asked about first."""
    names = [name for name in group.axes if group.is_number(name)]
    return sorted(names, key=lambda name: _ACROSS.index(name) if name in _ACROSS else len(_ACROSS))


def fixes_cores(group: Group) -> bool:
    """True when processes × threads is the same in all trials, so that neither varies alone."""
    if not all(name in group.varying and group.is_number(name) for name in WIDTHS):
        return False
    return np.unique(group.numbers("processes") * group.numbers("threads")).size == 1


def layout_of(group: Group, x: str, without: Sequence[str] = ()) -> Layout:
    """The layout of a chart with this parameter across."""
    left = [name for name in group.varying if name != x and name not in without]
    left.sort(key=lambda name: _COLOUR_FIRST.index(name) if name in _COLOUR_FIRST else len(_COLOUR_FIRST))
    colour = left[0] if left else ""
    few = [name for name in left[1:] if len(group.values(name)) <= MAX_SHAPES]
    shape = few[0] if few else ""
    notes: list[str] = []
    colours = _some(group, colour, MAX_COLOURS, notes) if colour else []
    shapes = group.values(shape) if shape else []
    rest = tuple(name for name in left if name not in (colour, shape))
    return Layout(x, colour, shape, rest, tuple(colours), tuple(shapes), tuple(notes))


def _some(group: Group, name: str, most: int, notes: list[str]) -> list[Any]:
    """The values of a parameter, or so many of them: numbers evenly over their range, others the fastest."""
    values = group.values(name)
    if len(values) <= most:
        return values
    notes.append(f"{most} of {len(values):,} values of {axis_title(name)} are drawn")
    if group.is_number(name):
        return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
    best = np.zeros(len(values))
    np.maximum.at(best, group.columns[name].codes, np.nan_to_num(group.rate))
    return [values[code] for code in np.argsort(-best, kind="stable")[:most]]


def fastest_each(group: Group, layout: Layout, values: Values) -> list[int]:
    """For each place of the layout the fastest trial over the rest, in order of x."""
    return _chosen(group, layout, values, np.ones(len(group.records), dtype=bool))


def like(group: Group, layout: Layout, values: Values, best: int) -> list[int]:
    """For each place of the layout the trial whose rest is that of the best one, in order of x."""
    rest = group.together(layout.rest)
    return _chosen(group, layout, values, rest == rest[best])


def _chosen(group: Group, layout: Layout, values: Values, among: "np.ndarray[Any, Any]") -> list[int]:
    allowed = among & ~np.isnan(values)
    if layout.colour:
        column = group.columns[layout.colour]
        allowed &= np.isin(column.codes, [column.code(value) for value in layout.colours])
    numbers = group.together([name for name in (layout.x, layout.colour, layout.shape) if name])
    places = largest_each(numbers, np.where(allowed, np.nan_to_num(group.rate), np.nan))
    chosen = sorted((int(i) for i in places), key=lambda i: group.points[i][layout.x])
    return thinned(group, layout, chosen)


def thinned(group: Group, layout: Layout, chosen: Sequence[int]) -> list[int]:
    """The trials, or where there are too many to draw those of x values spread evenly, the ends kept."""
    num_lines = max(1, len(layout.colours)) * max(1, len(layout.shapes))
    xs = sorted({group.points[i][layout.x] for i in chosen})
    most = max(2, MAX_POINTS // num_lines)
    if len(xs) <= most:
        return list(chosen)
    kept = {xs[round(k * (len(xs) - 1) / (most - 1))] for k in range(most)}
    return [i for i in chosen if group.points[i][layout.x] in kept]


def left_out(group: Group, layout: Layout, drawn: Sequence[int], best: int | None = None) -> str:
    """What a chart does not show, in a sentence; empty when it shows all."""
    words = list(layout.notes)
    if layout.rest and best is None:
        words.append(f"of {listed([axis_title(name) for name in layout.rest])} the fastest is drawn")
    elif layout.rest and best is not None:
        held = [value_words(name, group.points[best].get(name)) for name in layout.rest]
        words.append(f"drawn for {listed(held, 6)} only, as in the fastest trial")
    xs = {group.points[i][layout.x] for i in drawn}
    num_x = len(group.values(layout.x))
    if len(xs) < num_x and not layout.rest and not layout.notes:
        words.append(f"{len(xs):,} of {counted(num_x, 'value')} of {axis_title(layout.x)} are drawn")
    text = "; ".join(words)
    return f"{text[:1].upper()}{text[1:]}." if text else ""
