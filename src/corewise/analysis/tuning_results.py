"""Results of tunings. The tuner builds them, and reports read them from the journals of a store."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from corewise.store.sealed_lines import scan_file
from corewise.study.value_checks import check_plain
from corewise.text_format import shorten

# The folder of a store that holds the journals of tunings.
FOLDER = "tune"
UNIT = "samples/s"
# The verdicts of a tuning.
FASTER, NO_DIFFERENCE, UNCONFIRMED = "faster", "no difference", "unconfirmed"
# Every other setting failed, so nothing could be compared with the default.
NOT_MEASURED = "not measured"
Interval = tuple[float, float]
Ends = tuple[float | None, float | None]
_MAX_TITLE_CHARS = 160
# Larger figures come from no measurement, and what is computed from them would not be finite.
_MAX_FIGURE = 1e30


def _dump_fields(result: "SettingResult | LadderStep | RacedSetting") -> dict[str, Any]:
    """Convert the fields to plain values; in JSON, the label has the key `words`."""
    return {"words" if name == "label" else name: value for name, value in asdict(result).items()}


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """One setting with its figures.

    Attributes:
        interval: of the throughput; None if it was not measured in fresh runs.
        gpu_memory_bytes: only for workloads on a GPU.
        check_error: None if its numerical results were not checked.
        command: runs the setting once from a cold start.
        over_default: throughput over that of the default; None for the default itself and without fresh runs.
        trial_id: identifies the record of its fresh runs.
    """

    params: Mapping[str, Any]
    label: str
    throughput: float
    interval: Interval | None = None
    latency_s: float = 0.0
    memory_bytes: float = 0.0
    gpu_memory_bytes: float = 0.0
    compile_s: float = 0.0
    check_error: float | None = None
    command: str = ""
    over_default: float | None = None
    over_default_interval: Interval | None = None
    trial_id: str = ""

    @property
    def is_fresh(self) -> bool:
        """True if its figures come from fresh runs."""
        return self.interval is not None

    def to_json(self) -> dict[str, Any]:
        """Convert the result to plain JSON values."""
        values = _dump_fields(self)
        values["params"] = dict(self.params)
        for name in ("interval", "over_default_interval"):
            values[name] = list(values[name]) if values[name] else None
        return values


@dataclass(frozen=True)
class LadderStep:
    """One step from the default to the best setting.

    Attributes:
        label: the knobs that this step changes.
        gain: throughput over that of the previous step.
        total: throughput over that of the default.
    """

    label: str
    side: SettingResult
    gain: float
    gain_interval: Interval | None
    total: float

    def to_json(self) -> dict[str, Any]:
        """Convert the step to plain JSON values."""
        return _dump_fields(self) | {"side": self.side.to_json()}


@dataclass(frozen=True)
class RacedSetting:
    """A candidate of the search and its outcome.

    Attributes:
        ratio: throughput over that of the default; 0 if it was not measured.
        check_error: None if its numerical results were not checked.
    """

    label: str
    params: Mapping[str, Any]
    outcome: str
    ratio: float
    throughput: float
    latency_s: float
    check_error: float | None = None
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Convert the outcome to plain JSON values."""
        return _dump_fields(self)


@dataclass(frozen=True, kw_only=True)
class TuningAnswer:
    """The fields that every answer of a tuning has.

    Attributes:
        verdict: faster, no difference, unconfirmed or not measured.
        measured: all settings with fresh runs.
        asked: options that distinguish it from other tunings of the same name, for example "batch 8".
        key: identifies the question; the journal in the store is named after it.
        cautions: those of the notes that put the result in doubt.
    """

    name: str
    mode: str
    verdict: str
    default: SettingResult
    best: SettingResult
    hand: SettingResult | None = None
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    speedup_over_hand: float | None = None
    speedup_over_hand_interval: Interval | None = None
    ladder: tuple[LadderStep, ...] = ()
    measured: tuple[SettingResult, ...] = ()
    tied: tuple[RacedSetting, ...] = ()
    tried: tuple[RacedSetting, ...] = ()
    asked: tuple[str, ...] = ()
    key: str = ""
    unit: str = UNIT
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def sides(self) -> list[tuple[str, SettingResult]]:
        """Default, hand setting and best with their names; equal settings appear once."""
        sides = {self.default.label: ("default", self.default)}
        if self.hand is not None and self.hand.label != self.best.label:
            sides.setdefault(self.hand.label, ("by hand", self.hand))
        sides.setdefault(self.best.label, ("best", self.best))
        return list(sides.values())


@dataclass(frozen=True, kw_only=True)
class StoredTuning(TuningAnswer):
    """The answer of one tuning, read from its journal.

    Attributes:
        date: ISO 8601 in UTC; empty if the journal has none.
        not_tried: settings that were not tried, each with the reason.
    """

    study: str
    date: str
    headline: str
    not_tried: Sequence[tuple[str, str]]
    command: str

    @property
    def title(self) -> str:
        """Its name and the options that distinguish it, short enough for a heading."""
        return shorten(", ".join((shorten(self.name, 80), *self.asked)), _MAX_TITLE_CHARS)

    @property
    def work(self) -> str:
        """Its name without the options that begin with --, for charts and tables."""
        return shorten(", ".join((shorten(self.name, 80), *(w for w in self.asked if w[:2] != "--"))), 120)

    @property
    def trial_ids(self) -> set[str]:
        """The trials whose fresh runs support the answer."""
        return {each.trial_id for each in self.measured if each.trial_id}

    @property
    def fresh(self) -> dict[str, SettingResult]:
        """All settings that were measured in fresh runs, by label."""
        known = [*self.measured, *(step.side for step in self.ladder), *(side for _, side in self.sides)]
        return {each.label: each for each in known if each.is_fresh}


def get_ends(interval: Interval | None) -> Ends:
    """Return the ends of an interval, or two None if there is no interval."""
    return interval or (None, None)


def read_tunings(store: Path) -> list[StoredTuning]:
    """Read the last answer to each question that was tuned with this store; skip damaged journals."""
    tunings = []
    for path in sorted((store / FOLDER).glob("*.jsonl")):
        answers = [value for value in _read_entries(path) if value.get("entry") == "answered"]
        if answers:
            # An answer of another version, or an edited one, may have any form.
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                check_plain(answers[-1])
                tunings.append(_parse_tuning(path.stem, answers[-1]))
    return tunings


def _read_entries(path: Path) -> Iterator[Mapping[str, Any]]:
    with suppress(OSError), open(path, "rb") as file:
        yield from (entry.value for entry in scan_file(file) if entry.value is not None)


def _parse_tuning(key: str, entry: Mapping[str, Any]) -> StoredTuning:
    values = entry["answer"]
    hand = values.get("by_hand")
    return StoredTuning(
        study=str(entry["study"]),
        key=key,
        name=str(values["subject"]),
        asked=tuple(str(each) for each in values.get("asked") or ()),
        date=str(entry.get("date", "")),
        mode=str(values["mode"]),
        unit=str(values["unit"]),
        verdict=str(values["verdict"]),
        headline=str(entry["headline"]),
        default=_parse_setting(values["default"]),
        best=_parse_setting(values["best"]),
        hand=_parse_setting(hand) if hand else None,
        speedup=_parse_number(values.get("speedup")) or 1.0,
        speedup_interval=_parse_interval(values.get("speedup_interval")),
        speedup_over_hand=_parse_number(values.get("speedup_over_hand")),
        speedup_over_hand_interval=_parse_interval(values.get("speedup_over_hand_interval")),
        measured=tuple(_parse_setting(each) for each in values.get("measured") or ()),
        ladder=tuple(_parse_step(each) for each in values["ladder"]),
        tried=tuple(_parse_raced(each) for each in values["tried"]),
        tied=tuple(_parse_raced(each) for each in values["tied"]),
        not_tried=[(str(each["what"]), str(each["reason"])) for each in values["not_tried"]],
        notes=tuple(str(each) for each in values["notes"]),
        cautions=tuple(str(each) for each in values.get("cautions", ())),
        command=str(entry.get("command", "")),
    )


def _parse_setting(values: Mapping[str, Any]) -> SettingResult:
    return SettingResult(
        params=dict(values.get("params") or {}),
        label=str(values["words"]),
        throughput=_parse_number(values["throughput"]) or 0.0,
        interval=_parse_interval(values.get("interval")),
        latency_s=_parse_number(values.get("latency_s")) or 0.0,
        memory_bytes=_parse_number(values.get("memory_bytes")) or 0.0,
        gpu_memory_bytes=_parse_number(values.get("gpu_memory_bytes")) or 0.0,
        compile_s=_parse_number(values.get("compile_s")) or 0.0,
        check_error=_parse_number(values.get("check_error")),
        command=str(values.get("command") or ""),
        over_default=_parse_number(values.get("over_default")),
        over_default_interval=_parse_interval(values.get("over_default_interval")),
        trial_id=str(values.get("trial_id") or ""),
    )


def _parse_step(values: Mapping[str, Any]) -> LadderStep:
    return LadderStep(
        label=str(values["words"]),
        side=_parse_setting(values["side"]),
        gain=_parse_ratio(values["gain"]),
        gain_interval=_parse_interval(values.get("gain_interval")),
        total=_parse_ratio(values["total"]),
    )


def _parse_raced(values: Mapping[str, Any]) -> RacedSetting:
    return RacedSetting(
        label=str(values["words"]),
        params=dict(values.get("params") or {}),
        outcome=str(values["outcome"]),
        ratio=_parse_number(values["ratio"]) or 0.0,
        throughput=_parse_number(values.get("throughput")) or 0.0,
        latency_s=_parse_number(values["latency_s"]) or 0.0,
        check_error=_parse_number(values.get("check_error")),
        reason=str(values.get("reason", "")),
    )


def _parse_interval(value: Any) -> Interval | None:
    low, high = (_parse_number(end) for end in value or (None, None))
    return None if low is None or high is None else (low, high)


def _parse_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _MAX_FIGURE:
        return None
    return float(value)


def _parse_ratio(value: Any) -> float:
    number = _parse_number(value)
    if number is None:
        raise ValueError(f"not a ratio: {value!r:.40}")
    return number
