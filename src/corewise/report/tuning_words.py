"""What a tuning found, in sentences and tables."""

from collections.abc import Iterator

from corewise.report.model import Column, Table
from corewise.report.tunings import Tuning
from corewise.report.words import counted, duration, figure, listed, memory, short, times

_LONGEST = 300


def sentences_of(tuning: Tuning) -> list[str]:
    """The answer in sentences, the headline first."""
    best, default = tuning.best, tuning.default
    said = [f"{tuning.title}: {short(tuning.headline, _LONGEST)}"]
    if best.words != default.words:
        said.append(
            f"{figure(best.rate, best.low, best.high)} {tuning.unit} where the default gives "
            f"{figure(default.rate, default.low, default.high)}."
        )
    said += _against_hand(tuning)
    if tuning.mode == "infer" and best.latency_s and default.latency_s:
        said.append(f"A step takes {duration(best.latency_s)}; the default's {duration(default.latency_s)}.")
    if best.memory_bytes and best.words != default.words:
        said.append(f"It takes {memory(best.memory_bytes)}; the default {memory(default.memory_bytes)}.")
    if tuning.tied:
        said.append(f"Tied with it: {listed([short(each, 120) for each in tuning.tied], 3)}.")
    said += [short(note, _LONGEST) for note in tuning.notes]
    if tuning.command:
        said.append(f"The measurement once more, from cold: `{tuning.command}`")
    return said


def _against_hand(tuning: Tuning) -> Iterator[str]:
    if tuning.over_hand is None or tuning.hand is None or tuning.hand.words == tuning.best.words:
        return
    hand = f"the hand setting ({short(tuning.hand.words, 120)})"
    low, high = tuning.over_hand_low, tuning.over_hand_high
    ratio = times(tuning.over_hand, low, high)
    who = "The default" if tuning.best.words == tuning.default.words else "The best"
    if low is None or high is None or low <= 1 <= high:
        yield f"No difference from {hand} is shown: {who.lower()} is {ratio} as fast."
    else:
        yield f"{who} is {ratio} as fast as {hand}."


def tables_of(tuning: Tuning) -> Iterator[Table]:
    """What was raced, and what was not tried with its reason."""
    if tuning.raced:
        yield _raced_table(tuning)
    if tuning.not_tried:
        yield Table(
            key="not tried",
            title=f"{tuning.work}: not tried",
            columns=(Column(key="what", title="setting"), Column(key="why", title="reason")),
            rows=[(short(what, _LONGEST), short(why, _LONGEST)) for what, why in tuning.not_tried],
        )


def _raced_table(tuning: Tuning) -> Table:
    columns = (
        Column(key="setting", title="setting"),
        Column(key="outcome", title="outcome", hint="against the best at that time"),
        Column(key="ratio", title="over the default", kind="number", hint="by short samplings"),
        Column(key="latency", title="step", kind="seconds"),
        Column(key="error", title="error", kind="number", hint="against float64, as every trial is checked"),
        Column(key="reason", title="reason"),
    )
    in_order = sorted(tuning.raced, key=lambda each: -each.ratio)
    rows = [
        (
            short(each.words, _LONGEST),
            each.outcome,
            each.ratio or None,
            (each.latency_s or None) if tuning.mode != "script" else None,
            each.check_error if each.ratio else None,
            short(each.reason, _LONGEST),
        )
        for each in in_order
    ]
    return Table(
        key="raced",
        title=f"{tuning.work}: raced",
        columns=columns,
        rows=rows,
        caption=f"{counted(len(rows), 'setting')} raced by short samplings; only the fresh runs are claimed.",
        best_rows=[i for i, each in enumerate(in_order) if each.words == tuning.best.words],
    )
