"""The answer as text, for terminals, logs and `print`."""

from collections.abc import Iterator, Sequence

from corewise.report.words import clean, counted, duration, figure, memory, times
from corewise.tuner.durations import spoken
from corewise.tuner.result import FASTER, NO_DIFFERENCE, UNCONFIRMED, Side, Tried, TuneResult

SHOWN_LATENCIES = 8


def answer_text(result: TuneResult) -> str:
    """The whole answer, most wanted first."""
    parts = (
        _headline(result),
        _sides(result),
        _ladder(result),
        _latencies(result),
        _tied(result),
        _lines("Notes", [clean(note) for note in result.notes]),
        _rejected(result),
        _lines("Not tried", [f"{clean(each.what)}: {clean(each.reason)}" for each in result.left_out]),
        _how_to_use(result),
        _lines("Charts of it", [f"{result.report}"] if result.report else []),
    )
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part)


def headline(result: TuneResult) -> str:
    """The answer in one sentence."""
    if result.verdict == FASTER:
        gain = times(result.speedup, *(result.speedup_interval or (None, None)))
        return f"{result.best.words}: {gain} as fast as the default."
    if result.verdict == NO_DIFFERENCE:
        return "No difference: nothing that was tried is faster than the default here. Leave it as it is."
    if result.best.words == result.default.words:
        return "Stopped before anything faster than the default was found."
    gain = f"about {times(result.speedup)} the default"
    return f"Stopped. Best so far: {result.best.words}, {gain}; not confirmed by fresh runs."


def _headline(result: TuneResult) -> Iterator[str]:
    batch = "" if result.command else f", batch {result.batch}"
    yield f"{clean(result.name)}{batch}, on {result.machine}"
    yield headline(result)
    cut = not result.finished and result.verdict != UNCONFIRMED
    search = "; the search was cut short by its budget" if cut else ""
    yield f"{counted(result.trials, 'setting')} started, {spoken(result.seconds)}{search}."


def _sides(result: TuneResult) -> Iterator[str]:
    rows = [("default", result.default)]
    if result.hand is not None and result.hand.words not in (result.best.words, result.default.words):
        rows.append((f"by hand ({result.hand.words})", result.hand))
    if result.best.words != result.default.words:
        rows.append((f"best ({result.best.words})", result.best))
    yield from aligned(
        ["", result.unit, "latency", "memory", "GPU memory", "compile", "error"],
        [[clean(name), *_figures(side, bool(result.command))] for name, side in rows],
    )


def _figures(side: Side, is_script: bool) -> list[str]:
    low, high = side.interval or (None, None)
    return [
        figure(side.throughput, low, high),
        duration(side.latency_s) if side.latency_s and not is_script else "-",
        memory(side.memory_bytes) if side.memory_bytes else "-",
        memory(side.gpu_memory_bytes) if side.gpu_memory_bytes else "-",
        duration(side.compile_s) if side.compile_s else "-",
        f"{side.check_error:.1e}" if side.check_error or not is_script else "-",
    ]


def _ladder(result: TuneResult) -> Iterator[str]:
    if not result.ladder:
        return
    yield "What each knob gave, one at a time"
    rows = [["default", figure(result.default.throughput), "", ""]]
    for step in result.ladder:
        low, high = step.gain_interval or (None, None)
        gain = times(step.gain, low, high)
        rows.append([f"+ {clean(step.words)}", figure(step.side.throughput), gain, times(step.total)])
    yield from aligned(["", result.unit, "over the step before", "over the default"], rows)


def _latencies(result: TuneResult) -> Iterator[str]:
    """What throughput costs in latency: the settings that none beats in both."""
    front = latency_front(result.tried) if result.mode == "infer" else []
    if len(front) < 2:
        return
    yield "Throughput against latency (short samplings of the search)"
    rows = []
    for each in front[:SHOWN_LATENCIES]:
        note = "its latency is worse than the default's" if each.outcome == "latency" else ""
        rows.append([clean(each.words), times(each.ratio), duration(each.latency_s), note])
    yield from aligned(["", "throughput", "latency", ""], rows)


def latency_front(tried: Sequence[Tried]) -> list[Tried]:
    """The settings that no other beats in both throughput and latency, the quickest answer first."""
    measured = sorted((each for each in tried if each.throughput), key=lambda each: each.latency_s)
    front: list[Tried] = []
    for each in measured:
        if not front or each.ratio > front[-1].ratio:
            front.append(each)
    return front


def _tied(result: TuneResult) -> Iterator[str]:
    lines = [f"{clean(each.words)} ({times(each.ratio)} the default)" for each in result.tied]
    return _lines("Tied with the best, as far as the race could tell", lines)


def _rejected(result: TuneResult) -> Iterator[str]:
    rejected = [each for each in result.tried if each.outcome == "rejected"]
    return _lines("Rejected", [f"{clean(each.words)}: {clean(each.reason)}" for each in rejected])


def _how_to_use(result: TuneResult) -> Iterator[str]:
    if result.code:
        yield "In your code"
        for line in result.code.values():
            yield f"  {line}"
        yield ""
    if result.verdict == NO_DIFFERENCE:
        return
    yield "From outside"
    command = result.command or "python train.py"
    yield f"  corewise launch --config {result.output or 'tuned.yaml'} -- {command}"
    if result.best.command:
        yield ""
        yield "The measurement itself, once more from cold"
        yield f"  {result.best.command}"


def _lines(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {line}" for line in lines)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in plain text, its first column to the left and the others to the right, empty columns gone."""
    kept = [i for i in range(len(header)) if i == 0 or any(row[i].strip("-") for row in rows)]
    lines = [[row[i] for i in kept] for row in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(kept))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  " + "  ".join(cells).rstrip()
