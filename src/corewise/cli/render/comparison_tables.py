"""Draw a comparison on a terminal: differences, summary, then the trials with their ratios."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from corewise.analysis.comparison.comparison_model import ComparedTrial, OneSidedTrial, StoreComparison
from corewise.analysis.comparison.verdicts import PER_SAMPLE
from corewise.report.comparison.charts import describe_verdict
from corewise.report.comparison.sentences import describe_differences, describe_disagreements, format_values, name_side
from corewise.text_format import clean_text, format_count, format_duration, format_parameters, shorten

MAX_ROWS = 20
_MAX_NAMED = 4
_PLOT_WIDTH = 27
_GAP = 2
# Intervals are cut off at this multiple of the ratio.
_MAX_WHISKER = 1.5
_STYLES = {"slower": "red", "faster": "green", "same": "", "cannot tell": "yellow"}


def draw_comparison(console: Console, comparison: StoreComparison, show_all: bool) -> None:
    """Print the comparison: disturbances, differences, then the verdicts."""
    _draw_sides(console, comparison)
    for sentence in comparison.summary.disturbed:
        _print(console, sentence, "bold yellow")
    _draw_differences(console, comparison)
    _print(console, "")
    _print(console, comparison.summary.sentence, "bold")
    for note in (*comparison.summary.notes, *describe_disagreements(comparison.differences)):
        _print(console, note, "yellow")
    for notice in (*comparison.a.notices, *comparison.b.notices):
        _print(console, notice, "yellow")
    if comparison.trials:
        _draw_trials(console, comparison, show_all)
    for what, style, trials in (
        ("measured in A, failed in B", "bold red", comparison.broken),
        ("failed in A, measured in B", "bold green", comparison.fixed),
        ("failed on both sides", "bold", comparison.both_failed),
        ("measured in A, not in B", "bold yellow", comparison.only_a),
        ("measured in B, not in A", "bold", comparison.only_b),
    ):
        _draw_one_sided(console, what, style, trials, show_all)


def _draw_sides(console: Console, comparison: StoreComparison) -> None:
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        when = f", measured {side.measured_from} to {side.measured_to}" if side.measured_from else ""
        text = f"{name_side(side)}: {format_count(side.num_records, 'record')}, {side.num_ok:,} ok{when}"
        console.print(Text.assemble((f"{letter}  ", "bold"), text), soft_wrap=True)


def _draw_differences(console: Console, comparison: StoreComparison) -> None:
    _print(console, "")
    _print(console, describe_differences(comparison.differences))
    shown = [each for each in comparison.differences if each.num_pairs]
    if not shown:
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for header in ("what differs", "A", "B", "trials"):
        table.add_column(header, overflow="fold", justify="right" if header == "trials" else "left")
    for each in shown:
        name = clean_text(f"{each.group} {each.name}")
        values = (format_values(each.a_values), format_values(each.b_values))
        table.add_row(*(Text(text) for text in (name, *values, f"{each.num_pairs:,}")))
    console.print(table)


def _draw_trials(console: Console, comparison: StoreComparison, show_all: bool) -> None:
    shown = comparison.trials if show_all else comparison.trials[:MAX_ROWS]
    _print(console, "")
    if comparison.common:
        _print(console, f"always: {format_parameters(comparison.common)}", "dim")
    plot = RatioPlot(shown)
    has_room = console.width >= 100
    has_disturbed = bool(comparison.summary.disturbed)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    table.add_column("trial", overflow="fold", min_width=16)
    table.add_column("B is", no_wrap=True)
    table.add_column("time B/A", justify="right", no_wrap=True)
    if has_room:
        table.add_column(Text(plot.header), no_wrap=True)
    table.add_column(f"{100 * comparison.rule.confidence:g} % interval", no_wrap=True)
    table.add_column("adj. p", justify="right", no_wrap=True)
    if has_room:
        for header in ("delta", "A", "B", "processes"):
            table.add_column(header, justify="right", no_wrap=True)
    if has_disturbed:
        table.add_column("disturbed", justify="right", no_wrap=True)
    for trial in shown:
        disturbed = [Text(f"{trial.a_num_disturbed}, {trial.b_num_disturbed}")] if has_disturbed else []
        style = _STYLES[describe_verdict(trial)]
        table.add_row(*_make_cells(trial, plot, has_room), *disturbed, style=style)
    console.print(table)
    _draw_legend(console, comparison, len(shown), has_room)


def _make_cells(trial: ComparedTrial, plot: "RatioPlot", has_room: bool) -> list[Text]:
    interval = (
        "-" if trial.low is None or trial.high is None else f"{_format_ratio(trial.low)}–{_format_ratio(trial.high)}"
    )
    cells = [
        shorten(trial.name, 90),
        describe_verdict(trial) + (" !" if trial.regression else "") + (" ~" if trial.in_doubt else ""),
        "-" if trial.ratio is None else _format_ratio(trial.ratio),
        *([plot.draw_row(trial)] if has_room else []),
        interval,
        "-" if trial.adjusted_p_value is None else f"{trial.adjusted_p_value:.2g}",
    ]
    if has_room:
        effect = "-" if trial.effect_size is None else f"{trial.effect_size:+.2f}"
        processes = f"{trial.a_num_processes}, {trial.b_num_processes}"
        cells += [effect, format_duration(trial.a_time_s), format_duration(trial.b_time_s), processes]
    return [Text(cell) for cell in cells]


def _format_ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else f"{value:.3g}"


def _draw_legend(console: Console, comparison: StoreComparison, num_shown: int, has_room: bool) -> None:
    if num_shown < len(comparison.trials):
        more = len(comparison.trials) - num_shown
        _print(console, f"… and {more:,} more: --all shows them here, -o FILE.html on a page, --json as data", "dim")
    if any(trial.regression for trial in comparison.trials[:num_shown]):
        _print(console, f"!: slower by more than the threshold of {100 * comparison.rule.threshold:g} %.", "dim")
    if any(trial.in_doubt for trial in comparison.trials[:num_shown]):
        _print(console, "~: in doubt: disturbed runs may explain the verdict.", "dim")
    note = "Intervals are per trial; adj. p and the verdict are corrected for the number of trials."
    _print(console, note + (f" delta: Cliff's. {_describe_times(comparison)}" if has_room else ""), "dim")


def _describe_times(comparison: StoreComparison) -> str:
    """Return which times columns A and B show."""
    methods = {trial.method for trial in comparison.trials}
    what = "times per sample" if comparison.rule.metric == PER_SAMPLE else "times per step"
    if len(methods) > 1:
        return f"A, B: {what}, medians over processes; geometric means where Welch's t decides."
    return f"A, B: {what}, {'geometric means' if methods == {'Welch'} else 'medians'} over processes."


def _draw_one_sided(console: Console, what: str, style: str, trials: Sequence[OneSidedTrial], show_all: bool) -> None:
    if not trials:
        return
    _print(console, "")
    _print(console, f"{what}: {format_count(len(trials), 'trial')}", style)
    limit = len(trials) if show_all else _MAX_NAMED
    for trial in trials[:limit]:
        ids = ", ".join(clean_text(name)[:8] for name in (trial.a_trial_id, trial.b_trial_id) if name)
        reason = f": {shorten(trial.reason, 120)}" if trial.reason else ""
        _print(console, f"  {trial.name} ({ids}){reason}")
    if trials[limit:]:
        _print(console, f"  … and {len(trials) - limit:,} more: --all shows them", "dim")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)


class RatioPlot:
    """Plots of ratios and their intervals in characters, on one logarithmic scale around 1."""

    def __init__(self, trials: Sequence[ComparedTrial], width: int = _PLOT_WIDTH) -> None:
        reach = math.log(1.05)
        for trial in trials:
            if trial.ratio:
                ends = [
                    max(trial.low or 0.0, trial.ratio / _MAX_WHISKER),
                    min(trial.high or math.inf, trial.ratio * _MAX_WHISKER),
                ]
                reach = max(reach, *(abs(math.log(end)) for end in (trial.ratio, *ends)))
        self._reach = reach
        self._width = width

    @property
    def header(self) -> str:
        """Return the ends and the middle of the scale."""
        low, high = f"{math.exp(-self._reach):.2f}", f"{math.exp(self._reach):.2f}"
        middle = self._width // 2
        return f"{low}{'1':>{middle - len(low) + 1}}{high:>{self._width - middle - 1}}"

    def draw_row(self, trial: ComparedTrial) -> str:
        """Draw one trial: interval, ratio and the line at 1; an arrow marks a cut interval."""
        cells = [" "] * self._width
        if trial.ratio is not None:
            low = self._find_column(trial.ratio if trial.low is None else trial.low)
            high = self._find_column(trial.ratio if trial.high is None else trial.high)
            for place in range(max(0, low), min(self._width - 1, high) + 1):
                cells[place] = "─"
            if low < 0:
                cells[0] = "◂"
            if high >= self._width:
                cells[-1] = "▸"
        middle = self._width // 2
        cells[middle] = "┼" if cells[middle] == "─" else "│"
        if trial.ratio is not None:
            cells[min(self._width - 1, max(0, self._find_column(trial.ratio)))] = "●"
        return "".join(cells)

    def _find_column(self, ratio: float) -> int:
        middle = self._width // 2
        return middle + round(math.log(ratio) / self._reach * middle) if ratio > 0 else -1
