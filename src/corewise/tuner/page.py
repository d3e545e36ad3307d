"""The answer as HTML, for notebooks: one fragment without scripts."""

from collections.abc import Iterator, Sequence
from html import escape

from corewise.report.words import times
from corewise.tuner.result import TuneResult
from corewise.tuner.words import (
    answer_text,
    figure_names,
    figures_of,
    headline,
    sides_of,
    without_empty_columns,
)

BAR_WIDTH, BAR_HEIGHT, LETTER_WIDTH = 260, 22, 7


def answer_html(result: TuneResult) -> str:
    """The answer with its ladder drawn; the whole text folded below."""
    parts = [
        f"<p><b>{escape(result.title)}</b>, on {escape(result.machine)}<br>",
        f"<b>{escape(headline(result))}</b></p>",
        _table(result),
        _bars(result),
        f"<details><summary>Everything</summary><pre>{escape(answer_text(result))}</pre></details>",
    ]
    return "<div>" + "".join(parts) + "</div>"


def _table(result: TuneResult) -> str:
    """The sides with the same figures as in the text, columns in which nothing stands left out."""
    cells = [[name, side.words, *figures_of(side, result.is_script)] for name, side in sides_of(result)]
    names, *rows = without_empty_columns(["", "setting", *figure_names(result)], cells)
    header = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{header}</tr>{body}</table>"


def _bars(result: TuneResult) -> str:
    """The ladder as bars of throughput."""
    steps = [("default", result.default.throughput, 1.0)]
    steps += [(f"+ {step.words}", step.side.throughput, step.total) for step in result.ladder]
    if len(steps) < 2:
        return ""
    height = BAR_HEIGHT * len(steps)
    drawn = "".join(_drawn(steps))
    width = _label_width(steps) + BAR_WIDTH + 90
    return (
        f'<svg role="img" aria-label="What each knob gave" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{drawn}</svg>'
    )


def _drawn(steps: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    most = max(throughput for _, throughput, _ in steps) or 1.0
    left = _label_width(steps)
    for number, (words, throughput, total) in enumerate(steps):
        top, length = BAR_HEIGHT * number, BAR_WIDTH * throughput / most
        yield f'<text x="{left - 6}" y="{top + 15}" text-anchor="end">{escape(words)}</text>'
        yield f'<rect x="{left}" y="{top + 3}" width="{length:.1f}" height="16" fill="#4c78a8"/>'
        yield f'<text x="{left + length + 5:.1f}" y="{top + 15}">{escape(times(total))}</text>'


def _label_width(steps: Sequence[tuple[str, float, float]]) -> int:
    """What the longest of the words takes: several knobs in one step are many words."""
    return LETTER_WIDTH * max(len(words) for words, _, _ in steps) + 12
