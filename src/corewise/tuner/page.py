"""The answer as HTML, for notebooks: one fragment without scripts."""

from collections.abc import Iterator, Sequence
from html import escape

from corewise.report.words import duration, figure, memory, times
from corewise.tuner.result import Side, TuneResult
from corewise.tuner.words import answer_text, headline, sides_of

BAR_WIDTH, BAR_HEIGHT, LABEL_WIDTH = 260, 22, 280


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
    names = ["", "setting", result.unit, "latency", "memory"]
    cells = [_cells(name, side) for name, side in sides_of(result)]
    if result.is_script:  # whose steps nobody sees
        at = names.index("latency")
        names, cells = names[:at] + names[at + 1 :], [row[:at] + row[at + 1 :] for row in cells]
    header = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f"<table><tr>{header}</tr>{body}</table>"


def _cells(name: str, side: Side) -> list[str]:
    return [
        name,
        side.words,
        figure(side.throughput, *(side.interval or (None, None))),
        duration(side.latency_s) if side.latency_s else "-",
        memory(side.memory_bytes) if side.memory_bytes else "-",
    ]


def _bars(result: TuneResult) -> str:
    """The ladder as bars of throughput."""
    steps = [("default", result.default.throughput, 1.0)]
    steps += [(f"+ {step.words}", step.side.throughput, step.total) for step in result.ladder]
    if len(steps) < 2:
        return ""
    height = BAR_HEIGHT * len(steps)
    drawn = "".join(_drawn(steps))
    width = LABEL_WIDTH + BAR_WIDTH + 90
    return (
        f'<svg role="img" aria-label="What each knob gave" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor">{drawn}</svg>'
    )


def _drawn(steps: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    most = max(throughput for _, throughput, _ in steps) or 1.0
    for number, (words, throughput, total) in enumerate(steps):
        top, length = BAR_HEIGHT * number, BAR_WIDTH * throughput / most
        yield f'<text x="{LABEL_WIDTH - 6}" y="{top + 15}" text-anchor="end">{escape(words)}</text>'
        yield f'<rect x="{LABEL_WIDTH}" y="{top + 3}" width="{length:.1f}" height="16" fill="#4c78a8"/>'
        yield f'<text x="{LABEL_WIDTH + length + 5:.1f}" y="{top + 15}">{escape(times(total))}</text>'
