"""Draw the answer of `corewise shapes` in a terminal: sizes as characters, a row per policy, the code."""

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from corewise.shapes.answer_text import describe_images, summarize_shapes, write_code
from corewise.shapes.shapes_answer import ShapesAnswer
from corewise.text_format import clean_text, format_duration, format_number

_COLUMNS, _ROWS = 56, 14
# Characters for more and more images in a cell.
_DENSITIES = "·∘○●"
_MAX_PROBLEMS = 5


def draw_shapes(console: Console, answer: ShapesAnswer) -> None:
    """Print the answer; the code comes last, next to the prompt."""
    for line in describe_images(answer):
        console.print(Text(line), soft_wrap=True)
    _draw_problems(console, answer)
    console.print()
    for line in draw_scatter(answer.sizes.tolist()):
        console.print(Text(line), soft_wrap=True)
    console.print()
    _draw_policies(console, answer)
    console.print()
    for sentence in summarize_shapes(answer):
        console.print(Text(sentence.replace("`", "")), soft_wrap=True)
    console.print(Text("\ncode to paste", style="bold"))
    console.print(Text(write_code(answer)), soft_wrap=True, end="")


def draw_scatter(sizes: Sequence[Sequence[int]]) -> list[str]:
    """Draw heights over widths, both on logarithmic axes from the smallest to the largest side."""
    sides = np.log(np.asarray(sizes, dtype=np.float64))
    low, high = sides.min(axis=0), sides.max(axis=0)
    span = np.maximum(high - low, 1e-9)
    columns = np.minimum(((sides[:, 1] - low[1]) / span[1] * _COLUMNS).astype(int), _COLUMNS - 1)
    rows = np.minimum(((sides[:, 0] - low[0]) / span[0] * _ROWS).astype(int), _ROWS - 1)
    counts = np.zeros((_ROWS, _COLUMNS), dtype=int)
    np.add.at(counts, (rows, columns), 1)
    steps = math.log(max(2, counts.max()))
    lines = []
    for row in range(_ROWS - 1, -1, -1):
        label = f"{math.exp(high[0]):,.0f}" if row == _ROWS - 1 else f"{math.exp(low[0]):,.0f}" if row == 0 else ""
        cells = "".join(
            _DENSITIES[min(len(_DENSITIES) - 1, int(math.log(count) / steps * len(_DENSITIES)))] if count else " "
            for count in counts[row].tolist()
        )
        lines.append(f"{label:>7} │{cells}")
    left, right = f"{math.exp(low[1]):,.0f}", f"{math.exp(high[1]):,.0f}"
    lines.append(f"{'height':>7} └{'─' * _COLUMNS}")
    lines.append(f"{'':9}{left}{'width'.center(_COLUMNS - len(left) - len(right))}{right}")
    return lines


def _draw_problems(console: Console, answer: ShapesAnswer) -> None:
    problems = answer.found.problems
    for each in problems[:_MAX_PROBLEMS]:
        console.print(Text(f"  {clean_text(each.path)}: {clean_text(each.reason)}", style="yellow"), soft_wrap=True)
    if len(problems) > _MAX_PROBLEMS:
        more = f"  and {len(problems) - _MAX_PROBLEMS:,} more (--json or --report lists them)"
        console.print(Text(more, style="yellow"), soft_wrap=True)


def _draw_policies(console: Console, answer: ShapesAnswer) -> None:
    has_time = answer.question.seconds_per_megapixel is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("policy", no_wrap=True)
    headers = ["images/batch", "padding", "batches", "mean MP", "peak MP", "peak memory", "time", "companions"]
    for header in [
        *headers,
        *(["epoch"] if has_time else []),
        *(["step balance"] if answer.question.ranks > 1 else []),
    ]:
        table.add_column(header, justify="right", no_wrap=True)
    for name, each in answer.policies.items():
        figures = each.figures
        cells = [
            f"{figures.num_images / figures.num_batches:.1f}",
            f"{100 * figures.padding_share:.1f} %",
            f"{figures.num_batches:,}",
            format_number(figures.mean_pixels / 1e6),
            format_number(figures.peak_pixels / 1e6),
            f"{each.peak_gb:.1f} GB",
            f"×{each.time_over_random:.2f}",
            f"{each.companions:,.0f}",
        ]
        if has_time:
            cells.append(format_duration(each.seconds))
        if answer.question.ranks > 1:
            cells.append(f"+{100 * figures.step_imbalance:.1f} %")
        style = "bold green" if name == answer.recommended else ""
        table.add_row(Text(name, style=style), *cells)
    console.print(table)
