"""Draw the primitives of a model: table, shares of the step, summary and next commands."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from corewise.explain.ceiling_verdicts import JudgedPrimitive, PrimitivesAnswer
from corewise.explain.explanation_text import (
    describe_method,
    format_share,
    label_primitive,
    suggest_commands,
    summarize_answer,
)
from corewise.measured.workloads.model_breakdown import BETWEEN
from corewise.text_format import clean_text, format_duration, shorten

MAX_ROWS = 20
_MAX_LABEL_LENGTH = 58
# A ratio of the time in the model to the time alone that is highlighted.
_SLOW_RATIO = 1.25
# From this fraction on, the rounded value is above 100 %.
_ABOVE_CEILING = 1.005
_BAR_WIDTH = 30


def draw_answer(console: Console, answer: PrimitivesAnswer, show_all: bool) -> None:
    """Print the answer; the summary comes last, next to the prompt."""
    title = f"{answer.subject}: {', '.join(answer.asked)}"
    console.print(Text(clean_text(title), style="bold"), soft_wrap=True)
    console.print(Text(f"on {answer.machine}, torch {answer.versions.get('torch', '?')}"), soft_wrap=True)
    console.print()
    _draw_primitives(console, answer, show_all)
    console.print()
    _draw_shares(console, answer)
    console.print()
    for sentence in summarize_answer(answer):
        console.print(Text(sentence), soft_wrap=True)
    for note in answer.breakdown.notes:
        console.print(Text(f"disturbed: {note}", style="yellow"), soft_wrap=True)
    for name, text in describe_method(answer) if show_all else ():
        console.print(Text(f"{name}: {text}", style="dim"), soft_wrap=True)
    console.print(Text("\nto try next", style="bold"))
    for command, why in suggest_commands(answer):
        console.print(Text.assemble(f"  {command}", (f"   {why}", "dim")), soft_wrap=True)


def _draw_primitives(console: Console, answer: PrimitivesAnswer, show_all: bool) -> None:
    has_ceilings = any(each.ceiling_s is not None for each in answer.primitives)
    shown = answer.primitives if show_all else answer.primitives[:MAX_ROWS]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("primitive", no_wrap=True)
    for header in ("calls", "in the model", "share", "alone", "model/alone", "Gflop/s", "GB/s"):
        table.add_column(header, justify="right", no_wrap=True)
    if has_ceilings:
        table.add_column("of ceiling", justify="right", no_wrap=True)
    for each in shown:
        table.add_row(*_make_cells(each, has_ceilings, answer.breakdown.is_doubtful))
    console.print(table)
    rest = answer.primitives[len(shown) :]
    if rest:
        left_s = sum(each.primitive.in_model_s for each in rest)
        more = f"and {len(rest)} more, {format_duration(left_s)} together (--all shows them)"
        console.print(Text(more, style="dim"))
    above = {each.limit for each in shown if each.fraction is not None and each.fraction > _ABOVE_CEILING}
    if "memory" in above:
        note = "above 100 %: the data was in cache, but the ceiling is that of memory"
        console.print(Text(note, style="dim"))
    if "compute" in above:
        note = "above 100 %, compute-bound: faster than the matrix product that set the ceiling"
        console.print(Text(note, style="dim"))


def _make_cells(judged: JudgedPrimitive, has_ceilings: bool, is_doubtful: bool) -> list[str | Text]:
    own = judged.primitive
    ratio = own.model_over_alone
    slow = ratio is not None and ratio >= _SLOW_RATIO and judged.share >= 0.01 and not is_doubtful
    cells: list[str | Text] = [
        shorten(label_primitive(judged), _MAX_LABEL_LENGTH),
        f"{own.num_calls:.4g}",
        format_duration(own.in_model_s),
        "-" if is_doubtful else format_share(judged.share),
        format_duration(own.alone_s) if own.alone_s is not None else "-",
        Text(f"{ratio:.2f}" if ratio is not None else "-", style="yellow" if slow else ""),
        f"{own.gflop_per_s:,.1f}" if own.gflop_per_s else "-",
        f"{own.gbyte_per_s:,.1f}" if own.traffic_bytes else "-",
    ]
    if has_ceilings:
        cells.append(format_share(judged.fraction) if judged.fraction is not None else "-")
    return cells


def _draw_shares(console: Console, answer: PrimitivesAnswer) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where the time goes", no_wrap=True)
    for header in ("calls", "in the model", "alone", "share"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    breakdown = answer.breakdown
    for each in answer.shares:
        own = each.share
        is_known = own.category != BETWEEN or breakdown.between_s is not None
        is_shared = is_known and not breakdown.is_doubtful
        table.add_row(
            own.category,
            f"{own.num_calls:.4g}" if own.num_calls else "",
            format_duration(own.in_model_s) if is_known else "below the noise",
            format_duration(own.alone_s) if own.alone_s is not None else "",
            format_share(own.of_step) if is_shared else "",
            "█" * round(_BAR_WIDTH * min(1.0, own.of_step)) if is_shared else "",
        )
    for name, seconds in _list_sums(answer):
        share = format_share(seconds / breakdown.step_s)
        table.add_row(Text(name, style="bold"), "", format_duration(seconds), "", share, "")
    console.print(table)


def _list_sums(answer: PrimitivesAnswer) -> Sequence[tuple[str, float]]:
    breakdown = answer.breakdown
    return (
        ("sum of primitives, alone", breakdown.alone_s),
        ("sum of primitives, in the model", breakdown.in_model_s),
        ("the step", breakdown.step_s),
    )
