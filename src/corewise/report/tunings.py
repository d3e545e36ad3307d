"""What tunings found, read from the journals that they leave in a store."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.report.words import short
from corewise.store.lines import scan

FOLDER = "tune"  # of a store
_LONGEST_TITLE = 160


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """One setting with its figures; `low` and `high` are None where no fresh runs gave them."""

    words: str
    rate: float
    low: float | None = None
    high: float | None = None
    latency_s: float = 0.0
    memory_bytes: float = 0.0
    gpu_memory_bytes: float = 0.0
    compile_s: float = 0.0
    check_error: float | None = None
    over_default: float | None = None  # by fresh runs
    over_default_low: float | None = None
    over_default_high: float | None = None
    trial_id: str = ""  # of the record of its fresh runs

    @property
    def is_fresh(self) -> bool:
        """True when fresh runs gave its figures."""
        return self.low is not None


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One more knob on the way from the default to the best."""

    words: str
    setting: Tuned
    gain: float  # over the rung before
    low: float | None
    high: float | None
    total: float  # over the default


@dataclass(frozen=True, kw_only=True)
class Raced:
    """A setting as the races of the search saw it, relative to the default."""

    words: str
    outcome: str
    ratio: float  # of throughput to the default's; 0: it was not measured
    latency_s: float
    check_error: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The answer of one tuning."""

    study: str
    key: str  # different for each question
    name: str
    asked: Sequence[str]  # what sets it apart from others of that name, such as "batch 8"
    date: str  # ISO 8601, UTC; empty where the journal does not tell
    mode: str
    unit: str
    verdict: str
    headline: str
    default: Tuned
    best: Tuned
    hand: Tuned | None
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    over_hand: float | None
    over_hand_low: float | None
    over_hand_high: float | None
    measured: Sequence[Tuned]  # in fresh runs
    ladder: Sequence[Rung]
    raced: Sequence[Raced]
    tied: Sequence[str]
    not_tried: Sequence[tuple[str, str]]  # what, why
    notes: Sequence[str]
    command: str

    @property
    def title(self) -> str:
        """Its name with what sets it apart, short enough for a heading."""
        return short(", ".join((short(self.name, 80), *self.asked)), _LONGEST_TITLE)

    @property
    def work(self) -> str:
        """Its name with what it works on, for charts and tables: the title has its other wishes, too."""
        return short(", ".join((short(self.name, 80), *(w for w in self.asked if w[:2] != "--"))), 120)

    @property
    def trial_ids(self) -> set[str]:
        """The trials whose fresh runs it rests on."""
        return {each.trial_id for each in self.measured if each.trial_id}

    @property
    def fresh(self) -> dict[str, Tuned]:
        """What was measured in fresh runs, by its words."""
        steps = [rung.setting for rung in self.ladder]
        known = [*self.measured, *steps, *(side for _, side in self.sides)]
        return {each.words: each for each in known if each.is_fresh}

    @property
    def sides(self) -> list[tuple[str, Tuned]]:
        """Default, hand setting and best, each by its name; equal ones once."""
        found = {self.default.words: ("default", self.default)}
        if self.hand is not None and self.hand.words != self.best.words:
            found.setdefault(self.hand.words, ("by hand", self.hand))
        found.setdefault(self.best.words, ("best", self.best))
        return list(found.values())


def read_tunings(store: Path) -> list[Tuning]:
    """The last answer of each question that was tuned with this store; what cannot be read is passed by."""
    found = []
    for path in sorted((store / FOLDER).glob("*.jsonl")):
        answers = [value for value in _entries(path) if value.get("entry") == "answered"]
        if answers:
            try:
                found.append(_tuning(path.stem, answers[-1]))
            except (KeyError, TypeError, ValueError):
                continue
    return found


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return
    yield from (entry.value for entry in scan(lines) if entry.value is not None)


def _tuning(key: str, entry: Mapping[str, Any]) -> Tuning:
    told = entry["answer"]
    hand = told.get("by_hand")
    speedup_low, speedup_high = _interval(told.get("speedup_interval"))
    over_hand_low, over_hand_high = _interval(told.get("speedup_over_hand_interval"))
    return Tuning(
        study=str(entry["study"]),
        key=key,
        name=str(told["subject"]),
        asked=[str(each) for each in told.get("asked") or ()],
        date=str(entry.get("date", "")),
        mode=str(told["mode"]),
        unit=str(told["unit"]),
        verdict=str(told["verdict"]),
        headline=str(entry["headline"]),
        default=_tuned(told["default"]),
        best=_tuned(told["best"]),
        hand=_tuned(hand) if hand else None,
        speedup=_number(told.get("speedup")) or 1.0,
        speedup_low=speedup_low,
        speedup_high=speedup_high,
        over_hand=_number(told.get("speedup_over_hand")),
        over_hand_low=over_hand_low,
        over_hand_high=over_hand_high,
        measured=[_tuned(each) for each in told.get("measured") or ()],
        ladder=[_rung(each) for each in told["ladder"]],
        raced=[_raced(each) for each in told["tried"]],
        tied=[str(each["words"]) for each in told["tied"]],
        not_tried=[(str(each["what"]), str(each["reason"])) for each in told["not_tried"]],
        notes=[str(each) for each in told["notes"]],
        command=str(entry.get("command", "")),
    )


def _tuned(told: Mapping[str, Any]) -> Tuned:
    low, high = _interval(told.get("interval"))
    over_low, over_high = _interval(told.get("over_default_interval"))
    return Tuned(
        words=str(told["words"]),
        rate=_number(told["throughput"]) or 0.0,
        low=low,
        high=high,
        latency_s=_number(told.get("latency_s")) or 0.0,
        memory_bytes=_number(told.get("memory_bytes")) or 0.0,
        gpu_memory_bytes=_number(told.get("gpu_memory_bytes")) or 0.0,
        compile_s=_number(told.get("compile_s")) or 0.0,
        check_error=_number(told.get("check_error")),
        over_default=_number(told.get("over_default")),
        over_default_low=over_low,
        over_default_high=over_high,
        trial_id=str(told.get("trial_id") or ""),
    )


def _rung(told: Mapping[str, Any]) -> Rung:
    low, high = _interval(told.get("gain_interval"))
    return Rung(
        words=str(told["words"]),
        setting=_tuned(told["side"]),
        gain=float(told["gain"]),
        low=low,
        high=high,
        total=float(told["total"]),
    )


def _raced(told: Mapping[str, Any]) -> Raced:
    return Raced(
        words=str(told["words"]),
        outcome=str(told["outcome"]),
        ratio=_number(told["ratio"]) or 0.0,
        latency_s=_number(told["latency_s"]) or 0.0,
        check_error=_number(told.get("check_error")),
        reason=str(told.get("reason", "")),
    )


def _interval(told: Any) -> tuple[float | None, float | None]:
    low, high = told or (None, None)
    return _number(low), _number(high)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
