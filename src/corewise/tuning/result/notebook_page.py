"""Render a result as one HTML fragment without scripts, for notebooks."""

from collections.abc import Iterator, Sequence
from html import escape

from corewise.text_format import format_ratio
from corewise.tuning.result.result_text import (
    build_conclusion,
    drop_empty_columns,
    format_figures,
    format_headline,
    list_figure_names,
    render_text,
)
from corewise.tuning.result.tuning_result import TuneResult

BAR_WIDTH, BAR_HEIGHT, LETTER_WIDTH = 260, 22, 7


def render_html(result: TuneResult) -> str:
    """Render the result with its ladder as a bar chart and the full text folded below."""
    parts = [
        f"<p><b>{escape(result.title)}</b>, on {escape(result.machine)}<br>",
        f"<b>{escape(format_headline(result))}</b></p>",
        _render_conclusion(result),
        _render_table(result),
        _render_bars(result),
        f"<details><summary>Everything</summary><pre>{escape(render_text(result))}</pre></details>",
    ]
    return "<div>" + "".join(parts) + "</div>"


def _render_conclusion(result: TuneResult) -> str:
    """Render the command to type, the reason and the confidence."""
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in build_conclusion(result).items()
    )
    return f'<table style="text-align: left">{"".join(rows)}</table>'


def _render_table(result: TuneResult) -> str:
    """Render the compared settings with the figures of the text version, without empty columns."""
    cells = [[name, side.label, *format_figures(side, result.is_script)] for name, side in result.sides]
    names, *rows = drop_empty_columns(["", "setting", *list_figure_names(result)], cells)
    header = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{header}</tr>{body}</table>"


def _render_bars(result: TuneResult) -> str:
    """Render the ladder as bars of throughput."""
    steps = [("default", result.default.throughput, 1.0)]
    steps += [(f"+ {step.label}", step.side.throughput, step.total) for step in result.ladder]
    if len(steps) < 2:
        return ""
    height = BAR_HEIGHT * len(steps)
    bars = "".join(_draw_steps(steps))
    width = _compute_label_width(steps) + BAR_WIDTH + 90
    return (
        f'<svg role="img" aria-label="What each knob gave" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{bars}</svg>'
    )


def _draw_steps(steps: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    fastest = max(throughput for _, throughput, _ in steps) or 1.0
    left = _compute_label_width(steps)
    for number, (label, throughput, total) in enumerate(steps):
        top, length = BAR_HEIGHT * number, BAR_WIDTH * throughput / fastest
        yield f'<text x="{left - 6}" y="{top + 15}" text-anchor="end">{escape(label)}</text>'
        yield f'<rect x="{left}" y="{top + 3}" width="{length:.1f}" height="16" fill="#0072b2"/>'
        yield f'<text x="{left + length + 5:.1f}" y="{top + 15}">{escape(format_ratio(total))}</text>'


def _compute_label_width(steps: Sequence[tuple[str, float, float]]) -> int:
    """Compute the width of the longest label; a step that changes several knobs has a long one."""
    return LETTER_WIDTH * max(len(label) for label, _, _ in steps) + 12
