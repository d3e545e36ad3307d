"""The answer as text, for terminals, logs and `print`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from corewise.launcher.local import launch_command
from corewise.launcher.ranks import OUTSIDE_DEFAULTS
from corewise.report.words import clean, counted, duration, figure, memory, times
from corewise.tuner.durations import spoken
from corewise.tuner.result import FASTER, NO_DIFFERENCE, UNCONFIRMED, Side, Tried, TuneResult
from corewise.tuner.search import LATENCY_SLACK

ONE_AT_A_TIME = "What each knob gave, one at a time"
SHOWN_LATENCIES = 8


def answer_text(result: TuneResult) -> str:
    """The whole answer, most wanted first."""
    parts = (
        _headline(result),
        _sides(result),
        _ladder(result),
        _shortened(result),
        _latencies(result),
        _tied(result),
        _lines("Notes", [clean(note) for note in result.notes]),
        _rejected(result),
        _lines("Not tried", [f"{clean(each.what)}: {clean(each.reason)}" for each in result.left_out]),
        _how_to_use(result),
        _lines("Charts of it", [f"{result.report}"] if result.report else []),
    )
    texts = ["\n".join(part).rstrip() for part in map(list, parts)]
    return "\n\n".join(text for text in texts if text)


def headline(result: TuneResult) -> str:
    """The answer in one sentence."""
    if result.verdict == FASTER:
        gain = times(result.speedup, *(result.speedup_interval or (None, None)))
        return f"{result.best.words}: {gain} as fast as the default."
    if result.verdict == NO_DIFFERENCE and result.trials <= 1 and not result.finished:
        return "Nothing but the default was tried, for want of time: give a longer --budget."
    if result.verdict == NO_DIFFERENCE and result.is_undecided:
        return "No difference was shown, but the runs scatter too much to tell: the default stays for now."
    faster = "faster than the default" + (" at a latency that is no worse" if result.has_late else "")
    if result.verdict == NO_DIFFERENCE and not result.finished:
        num_others = sum(each.outcome not in ("default", "rejected") for each in result.tried)
        if num_others == 0:
            return "No difference so far: of what there was time for, nothing but the default runs."
        others = counted(num_others, "other setting")
        return f"No difference so far: time was enough for {others}, of which none is {faster}."
    if result.verdict == NO_DIFFERENCE:
        return f"No difference: nothing that was tried is {faster} here. Leave it as it is."
    if result.best.words == result.default.words:
        return "Stopped before anything faster than the default was found."
    gain = f"about {times(result.speedup)} the default"
    return f"Stopped. Best so far: {result.best.words}, {gain}; not confirmed by fresh runs."


def _headline(result: TuneResult) -> Iterator[str]:
    yield f"{clean(result.title)}, on {result.machine}"
    yield headline(result)
    cut = not result.finished and result.verdict != UNCONFIRMED
    search = "; the search was cut short by its budget" if cut else ""
    yield f"{counted(result.trials, 'setting')} started, {spoken(result.seconds)}{search}."


def _sides(result: TuneResult) -> Iterator[str]:
    rows = [
        [clean(name if name == side.words else f"{name} ({side.words})"), *figures_of(side, result.is_script)]
        for name, side in sides_of(result)
    ]
    yield from aligned(["", *figure_names(result)], rows)


def figure_names(result: TuneResult) -> list[str]:
    """What the figures of a side are called."""
    return [result.unit, "latency", "memory", "GPU memory", "compile", "error"]


def sides_of(result: TuneResult) -> list[tuple[str, Side]]:
    """Default, hand setting and best, each by its name; equal ones once."""
    found = {result.default.words: ("default", result.default)}
    if result.hand is not None and result.hand.words != result.best.words:
        found.setdefault(result.hand.words, ("by hand", result.hand))
    found.setdefault(result.best.words, ("best", result.best))
    return list(found.values())


def figures_of(side: Side, is_script: bool) -> list[str]:
    """The figures of a side in words, `-` where there is none: nobody sees the steps of a script."""
    low, high = side.interval or (None, None)
    return [
        figure(side.throughput, low, high),
        duration(side.latency_s) if side.latency_s and not is_script else "-",
        memory(side.memory_bytes) if side.memory_bytes else "-",
        memory(side.gpu_memory_bytes) if side.gpu_memory_bytes else "-",
        duration(side.compile_s) if side.compile_s else "-",
        ("-" if is_script else "not checked") if side.check_error is None else f"{side.check_error:.1e}",
    ]


def _ladder(result: TuneResult) -> Iterator[str]:
    if not result.ladder:
        return
    is_one = len(result.ladder) == 1 and "," in result.ladder[0].words
    yield "What all knobs gave together: no time was left for one at a time" if is_one else ONE_AT_A_TIME
    rows = [["default", figure(result.default.throughput), "", ""]]
    for step in result.ladder:
        low, high = step.gain_interval or (None, None)
        gain = times(step.gain, low, high)
        rows.append([f"+ {clean(step.words)}", figure(step.side.throughput), gain, times(step.total)])
    yield from aligned(["", result.unit, "over the step before", "over the default"], rows)


def _shortened(result: TuneResult) -> Iterator[str]:
    """What fewer digits gave and cost, also where they did not win: the fastest setting of each kind."""
    usual = _precision(result.default.params)
    fastest: dict[tuple[object, ...], Tried] = {}
    for each in sorted(result.tried, key=lambda each: -each.ratio):
        if each.throughput and _precision(each.params) != usual:
            fastest.setdefault(_precision(each.params), each)
    if not fastest:
        return
    yield "Fewer digits, and what they cost"
    rows = []
    for each in fastest.values():
        error = "not checked" if each.check_error is None else f"{each.check_error:.1e}"
        rows.append([clean(each.words), times(each.ratio), error])
    yield from aligned(["", "over the default, in the race", "error"], rows)


def _precision(params: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(params.get(name) for name in ("dtype", "float32_precision", "denormals"))


def _latencies(result: TuneResult) -> Iterator[str]:
    """What throughput costs in latency: the settings that none beats in both."""
    front = latency_front(latency_points(result)) if result.mode == "infer" else []
    if len(front) < 2:
        return
    yield "Throughput against latency"
    rows = []
    for each in front[:SHOWN_LATENCIES]:
        notes = ["by short samplings only"] if each.is_raced else []
        notes += ["its latency is worse than the default's"] if each.is_slower else []
        rows.append([clean(each.words), times(each.ratio), duration(each.latency_s), "; ".join(notes)])
    yield from aligned(["", "over the default", "latency", ""], rows)


@dataclass(frozen=True)
class Point:
    """A setting by throughput, as a ratio to the default's, and latency."""

    words: str
    ratio: float
    latency_s: float
    is_raced: bool  # no fresh runs were made of it
    is_slower: bool = False  # to answer than the default


def latency_points(result: TuneResult) -> list[Point]:
    """All settings that gave a figure: by fresh runs where there are any, else relative to the default's."""
    default = result.default
    fresh = {side.words: side for side in result.measured}
    points = [
        Point(
            side.words, ratio, side.latency_s, False, side.latency_s > (1 + LATENCY_SLACK) * default.latency_s
        )
        for side in fresh.values()
        if (ratio := 1.0 if side.words == default.words else side.over_default) is not None
    ]
    base_s = next((each.latency_s for each in result.tried if each.outcome == "default"), 0.0)
    scale = default.latency_s / base_s if base_s and default.latency_s else 1.0
    raced = [each for each in result.tried if each.throughput and each.words not in fresh]
    points += [
        Point(each.words, each.ratio, scale * each.latency_s, True, each.outcome == "latency")
        for each in raced
    ]
    return points


def latency_front(points: Sequence[Point]) -> list[Point]:
    """The settings that no other beats in both throughput and latency, the quickest answer first."""
    front: list[Point] = []
    for each in sorted(points, key=lambda each: each.latency_s):
        if not front or each.ratio > front[-1].ratio:
            front.append(each)
    return front


def _tied(result: TuneResult) -> Iterator[str]:
    best = next((each.ratio for each in result.tried if each.words == result.best.words), 0.0)
    lines = [
        f"{clean(each.words)} ({times(each.ratio / best)} the best)" if best else clean(each.words)
        for each in result.tied
    ]
    return _lines("Tied with the best, as far as the race could tell", lines)


def _rejected(result: TuneResult) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for each in result.tried:
        if each.outcome == "rejected":
            reasons.setdefault(clean(each.reason), []).append(clean(each.words))
    return _lines("Rejected", [f"{'; '.join(words)}: {reason}" for reason, words in reasons.items()])


def _how_to_use(result: TuneResult) -> Iterator[str]:
    if result.code:
        yield "In your code"
        for line in result.code.values():
            yield f"  {line}"
        yield ""
    if result.verdict == NO_DIFFERENCE and result.output:
        yield f"{result.output} holds the default's settings, for programs that read one."
        yield ""
    elif result.verdict != NO_DIFFERENCE and not result.found_nothing:
        yield "From outside"
        yield f"  {launch_line(result)}"
        yield ""
    if result.best.command and not result.is_script:
        yield "The measurement itself, once more from cold"
        yield f"  {result.best.command}"


def launch_line(result: TuneResult) -> str:
    """The command that starts a program so: by the file that was written, or each setting by its option."""
    program = result.command or f"python {'infer' if result.mode == 'infer' else 'train'}.py"
    if result.output:
        return f"corewise launch --config {shlex.quote(result.output)} -- {program}"
    params = result.best.params
    given = {n: params[n] for n, usual in OUTSIDE_DEFAULTS.items() if params.get(n, usual) != usual}
    *words, end = launch_command(given, (), result.environment)
    if result.mode == "infer" and params.get("processes", 1) > 1:
        words.append("--replicas")
    return f"{shlex.join([*words, end])} {program}"


def _lines(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {line}" for line in lines)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in plain text, its first column to the left and the others to the right, empty columns gone."""
    lines = without_empty_columns(header, rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        yield "  " + "  ".join(cells).rstrip()


def without_empty_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Header and rows without the columns in which nothing stands; the first stays."""
    kept = [i for i in range(len(header)) if i == 0 or any(row[i].strip("-") for row in rows)]
    return [[row[i] for i in kept] for row in (header, *rows)]
