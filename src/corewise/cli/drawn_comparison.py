"""A comparison drawn for a terminal: what differs, the sentence, then the trials with their ratios."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from corewise.cli.figures import clean, duration, point
from corewise.comparison.charts import standing
from corewise.comparison.model import ComparedTrial, Comparison, OneSided
from corewise.comparison.verdicts import PER_SAMPLE
from corewise.comparison.words import difference_words, side_name, values_words, within_words
from corewise.report.words import counted, short

MAX_ROWS = 20
_MAX_NAMED = 4
_PLOT_WIDTH = 27
_GAP = 2
_WIDEST = 1.5  # a whisker is cut off where it is so many times the ratio
_STYLES = {"slower": "red", "faster": "green", "same": "", "cannot tell": "yellow"}


def draw_comparison(console: Console, found: Comparison, show_all: bool) -> None:
    """Print the comparison: what others disturbed, what differs, then the verdicts."""
    _draw_sides(console, found)
    for sentence in found.summary.disturbed:
        _print(console, sentence, "bold yellow")
    _draw_differences(console, found)
    _print(console, "")
    _print(console, found.summary.sentence, "bold")
    for note in (*found.summary.notes, *within_words(found.differences)):
        _print(console, note, "yellow")
    for notice in (*found.a.notices, *found.b.notices):
        _print(console, notice, "yellow")
    if found.trials:
        _draw_trials(console, found, show_all)
    for what, style, trials in (
        ("measured in A, failed in B", "bold red", found.broken),
        ("failed in A, measured in B", "bold green", found.fixed),
        ("failed on both sides", "bold", found.both_failed),
        ("measured in A, not in B", "bold yellow", found.only_a),
        ("measured in B, not in A", "bold", found.only_b),
    ):
        _draw_one_sided(console, what, style, trials, show_all)


def _draw_sides(console: Console, found: Comparison) -> None:
    for letter, side in (("A", found.a), ("B", found.b)):
        when = f", measured {side.measured_from} to {side.measured_to}" if side.measured_from else ""
        told = f"{side_name(side)}: {counted(side.num_records, 'record')}, {side.num_ok:,} ok{when}"
        console.print(Text.assemble((f"{letter}  ", "bold"), told), soft_wrap=True)


def _draw_differences(console: Console, found: Comparison) -> None:
    _print(console, "")
    _print(console, difference_words(found.differences))
    shown = [each for each in found.differences if each.num_pairs]
    if not shown:
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for header in ("what differs", "A", "B", "trials"):
        table.add_column(header, overflow="fold", justify="right" if header == "trials" else "left")
    for each in shown:
        name = clean(f"{each.group} {each.name}")
        values = (values_words(each.a_values), values_words(each.b_values))
        table.add_row(*(Text(text) for text in (name, *values, f"{each.num_pairs:,}")))
    console.print(table)


def _draw_trials(console: Console, found: Comparison, show_all: bool) -> None:
    shown = found.trials if show_all else found.trials[:MAX_ROWS]
    _print(console, "")
    if found.common:
        _print(console, f"always: {point(found.common)}", "dim")
    plot = RatioPlot(shown)
    has_room = console.width >= 100
    has_disturbed = bool(found.summary.disturbed)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("trial", overflow="fold", min_width=16)
    table.add_column("B is", no_wrap=True)
    table.add_column("time B/A", justify="right", no_wrap=True)
    if has_room:
        table.add_column(Text(plot.header), no_wrap=True)
    table.add_column(f"{100 * found.rule.confidence:g} % interval", no_wrap=True)
    table.add_column("adj. p", justify="right", no_wrap=True)
    if has_room:
        for header in ("delta", "A", "B", "processes"):
            table.add_column(header, justify="right", no_wrap=True)
    if has_disturbed:
        table.add_column("disturbed", justify="right", no_wrap=True)
    for trial in shown:
        disturbed = [Text(f"{trial.a_num_disturbed}, {trial.b_num_disturbed}")] if has_disturbed else []
        table.add_row(*_cells(trial, plot, has_room), *disturbed, style=_STYLES[standing(trial)])
    console.print(table)
    _draw_legend(console, found, len(shown), has_room)


def _cells(trial: ComparedTrial, plot: "RatioPlot", has_room: bool) -> list[Text]:
    interval = "-" if trial.low is None or trial.high is None else f"{_ratio(trial.low)}–{_ratio(trial.high)}"
    cells = [
        short(trial.name, 90),
        standing(trial) + (" !" if trial.regression else "") + (" ~" if trial.in_doubt else ""),
        "-" if trial.ratio is None else _ratio(trial.ratio),
        *([plot.row(trial)] if has_room else []),
        interval,
        "-" if trial.adjusted_p_value is None else f"{trial.adjusted_p_value:.2g}",
    ]
    if has_room:
        effect = "-" if trial.effect_size is None else f"{trial.effect_size:+.2f}"
        processes = f"{trial.a_num_processes}, {trial.b_num_processes}"
        cells += [effect, duration(trial.a_time_s), duration(trial.b_time_s), processes]
    return [Text(cell) for cell in cells]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"


def _draw_legend(console: Console, found: Comparison, num_shown: int, has_room: bool) -> None:
    if num_shown < len(found.trials):
        more = len(found.trials) - num_shown
        _print(
            console,
            f"… and {more:,} more: --all shows them here, -o FILE.html on a page, --json all figures",
            "dim",
        )
    if any(trial.regression for trial in found.trials[:num_shown]):
        _print(console, f"!: slower by more than the threshold of {100 * found.rule.threshold:g} %.", "dim")
    if any(trial.in_doubt for trial in found.trials[:num_shown]):
        _print(console, "~: in doubt, for others disturbed runs that may account for the verdict.", "dim")
    told = (
        "Each interval is of its trial alone; adj. p and the verdict are corrected for the number of trials."
    )
    _print(console, told + (f" delta: Cliff's. {_times_words(found)}" if has_room else ""), "dim")


def _times_words(found: Comparison) -> str:
    """Which times stand under A and B."""
    methods = {trial.method for trial in found.trials}
    what = "times per sample" if found.rule.metric == PER_SAMPLE else "times per step"
    if len(methods) > 1:
        return f"A, B: {what}, medians over processes; geometric means where Welch's t decides."
    return f"A, B: {what}, {'geometric means' if methods == {'Welch'} else 'medians'} over processes."


def _draw_one_sided(
    console: Console, what: str, style: str, trials: Sequence[OneSided], show_all: bool
) -> None:
    if not trials:
        return
    _print(console, "")
    _print(console, f"{what}: {counted(len(trials), 'trial')}", style)
    limit = len(trials) if show_all else _MAX_NAMED
    for trial in trials[:limit]:
        ids = ", ".join(clean(name)[:8] for name in (trial.a_trial_id, trial.b_trial_id) if name)
        reason = f": {short(trial.reason, 120)}" if trial.reason else ""
        _print(console, f"  {trial.name} ({ids}){reason}")
    if trials[limit:]:
        _print(console, f"  … and {len(trials) - limit:,} more: --all shows them", "dim")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


class RatioPlot:
    """Ratios with their intervals as lines of characters, all on one logarithmic scale around 1."""

    def __init__(self, trials: Sequence[ComparedTrial], width: int = _PLOT_WIDTH) -> None:
        reach = math.log(1.05)
        for trial in trials:
            if trial.ratio:
                ends = [
                    max(trial.low or 0.0, trial.ratio / _WIDEST),
                    min(trial.high or math.inf, trial.ratio * _WIDEST),
                ]
                reach = max(reach, *(abs(math.log(end)) for end in (trial.ratio, *ends)))
        self._reach = reach
        self._width = width

    @property
    def header(self) -> str:
        """The ends of the scale and its middle, over the plot."""
        low, high = f"{math.exp(-self._reach):.2f}", f"{math.exp(self._reach):.2f}"
        middle = self._width // 2
        return f"{low}{'1':>{middle - len(low) + 1}}{high:>{self._width - middle - 1}}"

    def row(self, trial: ComparedTrial) -> str:
        """One trial: its interval, its ratio, and the line at 1; an arrow where the interval goes on."""
        cells = [" "] * self._width
        if trial.ratio is not None:
            low = self._place(trial.ratio if trial.low is None else trial.low)
            high = self._place(trial.ratio if trial.high is None else trial.high)
            for place in range(max(0, low), min(self._width - 1, high) + 1):
                cells[place] = "─"
            if low < 0:
                cells[0] = "◂"
            if high >= self._width:
                cells[-1] = "▸"
        middle = self._width // 2
        cells[middle] = "┼" if cells[middle] == "─" else "│"
        if trial.ratio is not None:
            cells[min(self._width - 1, max(0, self._place(trial.ratio)))] = "●"
        return "".join(cells)

    def _place(self, ratio: float) -> int:
        middle = self._width // 2
        return middle + round(math.log(ratio) / self._reach * middle) if ratio > 0 else -1
