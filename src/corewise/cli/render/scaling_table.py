"""Draw scaling over nodes or processes on a terminal: one row per count, then what it means."""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corewise.analysis.scaling.scaling_summary import ScalingCount, ScalingSummary
from corewise.analysis.scaling.step_split import StepPart
from corewise.text_format import clean_text, format_duration, format_fraction, format_number, format_parameters


def draw_scaling(console: Console, summaries: Sequence[ScalingSummary]) -> None:
    """Print each curve as a table with its sentences."""
    for summary in summaries:
        console.print()
        params = format_parameters(summary.params)
        title = f"{summary.scaling} scaling over {summary.unit}{f', {params}' if params else ''}"
        console.print(Text(title, style="bold"))
        console.print(_build_table(summary))
        if any(each.is_estimated for each in summary.counts):
            console.print(Text("parts of the step are estimated from CPU time", style="dim"))
        for sentence in summary.sentences:
            console.print(Padding(Text(clean_text(sentence)), (0, 0, 0, 2), expand=False))


def _build_table(summary: ScalingSummary) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    parts = [part for part in StepPart if any(part.value in each.parts_s for each in summary.counts)]
    is_modelled = any(each.predicted_samples_per_s is not None for each in summary.counts)
    headers = [summary.unit, "samples/s", "efficiency", "step", *(_shorten_part(part) for part in parts)]
    for header in [*headers, *(["model"] if is_modelled else [])]:
        drawn.add_column(Text(header), justify="right", no_wrap=True, vertical="bottom")
    for each in summary.counts:
        cells = [
            str(each.count),
            format_number(each.samples_per_s),
            _format_efficiency(each),
            format_duration(each.step_s),
            *(_format_part(each.parts_s.get(part.value)) for part in parts),
        ]
        drawn.add_row(*(Text(cell) for cell in [*cells, *([_format_model(each)] if is_modelled else [])]))
    return drawn


def _shorten_part(part: StepPart) -> str:
    return part.value.replace("exposed communication", "exposed\ncomm.")


def _format_part(seconds: float | None) -> str:
    return "0" if seconds == 0 else format_duration(seconds)


def _format_efficiency(each: ScalingCount) -> str:
    if each.efficiency is None:
        return "-"
    return format_fraction(each.efficiency, each.efficiency_low, each.efficiency_high).replace(" to ", "–")


def _format_model(each: ScalingCount) -> str:
    if each.predicted_samples_per_s is None:
        return "-"
    ends = f"{format_number(each.predicted_low)}–{format_number(each.predicted_high)}"
    return f"{format_number(each.predicted_samples_per_s)} ({ends})"
