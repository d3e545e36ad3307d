"""The answer of a tuning as values; words and pages are made of it elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from corewise.tuner.space import LeftOut

Interval = tuple[float, float]
UNIT = "samples/s"
FASTER, NO_DIFFERENCE, UNCONFIRMED = "faster", "no difference", "unconfirmed"  # verdicts


@dataclass(frozen=True, kw_only=True)
class Side:
    """One setting with its figures."""

    params: Mapping[str, Any]
    words: str
    throughput: float
    interval: Interval | None = None  # None: not measured in fresh runs
    latency_s: float = 0.0
    memory_bytes: float = 0.0
    gpu_memory_bytes: float = 0.0  # of a workload on a GPU
    compile_s: float = 0.0
    check_error: float | None = None  # None: its numbers were not checked
    command: str = ""  # runs it once from a cold start
    over_default: float | None = None  # of throughput; None: the default itself, or not in fresh runs
    over_default_interval: Interval | None = None
    trial_id: str = ""  # of the record of its fresh runs

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["params"] = dict(self.params)
        for name in ("interval", "over_default_interval"):
            values[name] = list(values[name]) if values[name] else None
        return values


@dataclass(frozen=True)
class Step:
    """One more knob on the way from the default to the best."""

    words: str  # what was changed
    side: Side
    gain: float  # over the step before
    gain_interval: Interval | None
    total: float  # over the default


@dataclass(frozen=True)
class Tried:
    """A setting that was raced, with what the race showed."""

    words: str
    params: Mapping[str, Any]
    outcome: str
    ratio: float  # to the default's throughput
    throughput: float
    latency_s: float
    check_error: float | None = None  # None: its numbers were not checked
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What a tuning found; prints as text, and as a page in a notebook."""

    name: str
    mode: str
    batch: int
    machine: str
    verdict: str  # faster | no difference | unconfirmed
    default: Side
    best: Side
    hand: Side | None = None
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    speedup_over_hand: float | None = None
    speedup_over_hand_interval: Interval | None = None
    ladder: tuple[Step, ...] = ()
    measured: tuple[Side, ...] = ()  # all that fresh runs were made of
    tied: tuple[Tried, ...] = ()
    tried: tuple[Tried, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    finished: bool = True
    is_undecided: bool = False  # no difference was shown because the runs scatter too much
    has_late: bool = False  # something was faster, but with a worse latency
    seconds: float = 0.0
    asked: tuple[str, ...] = ()  # what sets it apart from other tunings of that name, in words
    key: str = ""  # of its question, as its journal in the store is named
    code: Mapping[str, str] = field(default_factory=dict)  # setting -> the line that applies it
    command: str = ""  # of a script, as it was given
    environment: Mapping[str, str] = field(default_factory=dict)  # what was set for every start
    unit: str = UNIT
    output: str = ""
    report: str = ""  # the page that shows it
    store: str = ""
    notes: tuple[str, ...] = ()

    @property
    def trials(self) -> int:
        """How many settings were started."""
        return len(self.tried)

    @property
    def title(self) -> str:
        """Its name with what sets it apart from other tunings of that name."""
        return ", ".join((self.name, *self.asked))

    @property
    def is_script(self) -> bool:
        """True where a command was tuned, of which neither batch nor latency is known."""
        return self.mode == "script"

    @property
    def found_nothing(self) -> bool:
        """True for a tuning that was stopped before anything better than the default was found."""
        return self.verdict == UNCONFIRMED and self.best.words == self.default.words

    @property
    def study(self) -> str:
        """The name under which its fresh runs are kept in the store."""
        return f"tune {self.name}"

    def to_json(self) -> dict[str, Any]:
        """The whole as plain JSON values; what is no finite number is null."""
        values: dict[str, Any] = _finite(self._values())
        return values

    def _values(self) -> dict[str, Any]:
        return {
            "subject": self.name,
            "mode": self.mode,
            "asked": list(self.asked),
            "batch": self.batch,
            "machine": self.machine,
            "unit": self.unit,
            "verdict": self.verdict,
            "default": self.default.to_json(),
            "best": self.best.to_json(),
            "by_hand": self.hand.to_json() if self.hand else None,
            "speedup": self.speedup,
            "speedup_interval": list(self.speedup_interval) if self.speedup_interval else None,
            "speedup_over_hand": self.speedup_over_hand,
            "speedup_over_hand_interval": (
                list(self.speedup_over_hand_interval) if self.speedup_over_hand_interval else None
            ),
            "ladder": [asdict(step) | {"side": step.side.to_json()} for step in self.ladder],
            "measured": [side.to_json() for side in self.measured],
            "tied": [asdict(each) for each in self.tied],
            "tried": [asdict(each) for each in self.tried],
            "not_tried": [{"what": each.what, "reason": each.reason} for each in self.left_out],
            "finished": self.finished,
            "trials": self.trials,
            "seconds": self.seconds,
            "code": dict(self.code),
            "environment": dict(self.environment),
            "output": self.output,
            "report": self.report,
            "store": self.store,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        from corewise.tuner.words import answer_text

        return answer_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from corewise.tuner.page import answer_html

        return answer_html(self)


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON has no words for."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
