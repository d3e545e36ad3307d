"""A model's primitives drawn for a terminal: the table, where the time goes, the sum, what to try."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from corewise.breakdown.judged import Answer, JudgedPrimitive
from corewise.breakdown.words import label, method_words, next_commands, share_words, summary
from corewise.cli.figures import clean, duration
from corewise.report.words import short
from corewise.workloads.breakdown import BETWEEN

MAX_ROWS = 20
_LABEL_LETTERS = 58
_SLOW = 1.25  # in the model over alone
_ABOVE = 1.005  # shown as more than 100 %
_BAR_WIDTH = 30


def draw_answer(console: Console, answer: Answer, show_all: bool) -> None:
    """Print the answer: the sentences last, where the eye is."""
    title = f"{answer.subject}: {', '.join(answer.asked)}"
    console.print(Text(clean(title), style="bold"), soft_wrap=True)
    console.print(Text(f"on {answer.machine}, torch {answer.versions.get('torch', '?')}"), soft_wrap=True)
    console.print()
    _draw_primitives(console, answer, show_all)
    console.print()
    _draw_shares(console, answer)
    console.print()
    for sentence in summary(answer):
        console.print(Text(sentence), soft_wrap=True)
    for note in answer.breakdown.notes:
        console.print(Text(f"disturbed: {note}", style="yellow"), soft_wrap=True)
    for name, words in method_words(answer) if show_all else ():
        console.print(Text(f"{name}: {words}", style="dim"), soft_wrap=True)
    console.print(Text("\nto try next", style="bold"))
    for command, why in next_commands(answer):
        console.print(Text.assemble(f"  {command}", (f"   {why}", "dim")), soft_wrap=True)


def _draw_primitives(console: Console, answer: Answer, show_all: bool) -> None:
    has_ceilings = any(each.ceiling_s is not None for each in answer.primitives)
    shown = answer.primitives if show_all else answer.primitives[:MAX_ROWS]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("primitive", no_wrap=True)
    for header in ("calls", "in the model", "share", "alone", "model/alone", "Gflop/s", "GB/s"):
        table.add_column(header, justify="right", no_wrap=True)
    if has_ceilings:
        table.add_column("of ceiling", justify="right", no_wrap=True)
    for each in shown:
        table.add_row(*_cells(each, has_ceilings, answer.breakdown.is_doubtful))
    console.print(table)
    rest = answer.primitives[len(shown) :]
    if rest:
        left_s = sum(each.primitive.in_model_s for each in rest)
        told = f"and {len(rest)} more, {duration(left_s)} together (--all shows them)"
        console.print(Text(told, style="dim"))
    above = {each.limit for each in shown if each.fraction is not None and each.fraction > _ABOVE}
    if "memory" in above:
        told = "above 100 %: what it reads was in the cache, and the ceiling is that of memory"
        console.print(Text(told, style="dim"))
    if "compute" in above:
        told = "above 100 %, limited by computing: faster than the product of matrices that set the ceiling"
        console.print(Text(told, style="dim"))


def _cells(judged: JudgedPrimitive, has_ceilings: bool, is_doubtful: bool) -> list[str | Text]:
    own = judged.primitive
    ratio = own.model_over_alone
    slow = ratio is not None and ratio >= _SLOW and judged.share >= 0.01 and not is_doubtful
    cells: list[str | Text] = [
        short(label(judged), _LABEL_LETTERS),
        f"{own.num_calls:.4g}",
        duration(own.in_model_s),
        "-" if is_doubtful else share_words(judged.share),
        duration(own.alone_s) if own.alone_s is not None else "-",
        Text(f"{ratio:.2f}" if ratio is not None else "-", style="yellow" if slow else ""),
        f"{own.gflop_per_s:,.1f}" if own.gflop_per_s else "-",
        f"{own.gbyte_per_s:,.1f}" if own.traffic_bytes else "-",
    ]
    if has_ceilings:
        cells.append(share_words(judged.fraction) if judged.fraction is not None else "-")
    return cells


def _draw_shares(console: Console, answer: Answer) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where the time goes", no_wrap=True)
    for header in ("calls", "in the model", "alone", "share"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    found = answer.breakdown
    for each in answer.shares:
        own = each.share
        is_told = own.category != BETWEEN or found.between_s is not None
        is_shared = is_told and not found.is_doubtful
        table.add_row(
            own.category,
            f"{own.num_calls:.4g}" if own.num_calls else "",
            duration(own.in_model_s) if is_told else "too little to tell",
            duration(own.alone_s) if own.alone_s is not None else "",
            share_words(own.of_step) if is_shared else "",
            "█" * round(_BAR_WIDTH * min(1.0, own.of_step)) if is_shared else "",
        )
    for name, seconds in _sums(answer):
        share = share_words(seconds / found.step_s)
        table.add_row(Text(name, style="bold"), "", duration(seconds), "", share, "")
    console.print(table)


def _sums(answer: Answer) -> Sequence[tuple[str, float]]:
    found = answer.breakdown
    return (
        ("sum of primitives, alone", found.alone_s),
        ("sum of primitives, in the model", found.in_model_s),
        ("the step", found.step_s),
    )
