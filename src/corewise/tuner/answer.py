"""From a search and its fresh runs to the answer: who won, by how much, and through which knobs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from corewise.engine.machine_view import Host
from corewise.launcher.code_settings import code_settings
from corewise.spec.record import Record
from corewise.stats.compare import Comparison
from corewise.tuner.cold import ColdStart
from corewise.tuner.confirm import Confirmed, is_unchecked
from corewise.tuner.found import Found, Judged
from corewise.tuner.knobs import Offer, together
from corewise.tuner.result import (
    FASTER,
    NO_DIFFERENCE,
    UNCONFIRMED,
    Interval,
    Side,
    Step,
    Tried,
    TuneResult,
)
from corewise.tuner.search import LATENCY_SLACK
from corewise.tuner.space import Setting, Space

TOO_WIDE = 1.2  # the upper end of an interval of ratios over its lower end
SCATTERS = "The runs scatter too much to tell: ask with --again on a quieter machine, or with more --budget"


class Answerable(Protocol):
    """What an answer is about: a workload, or a script."""

    @property
    def name(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def asked(self) -> tuple[str, ...]: ...
    @property
    def host(self) -> Host: ...
    @property
    def offer(self) -> Offer: ...
    @property
    def space(self) -> Space: ...


@dataclass(frozen=True)
class Choice:
    """The winner of the fresh runs, its gain over the default, and what has to be said of it."""

    winner: Setting
    against: Comparison | None
    notes: tuple[str, ...] = ()
    is_undecided: bool = False  # the runs of the search's best scatter too much to tell
    is_late: bool = False  # one was faster, but with a worse latency


def choose(tunable: Answerable, found: Found, hand: Setting, confirmed: Confirmed) -> Choice:
    """The winner by fresh runs alone: the best of the search, the hand setting, or the default."""
    default, notes, is_undecided, is_late = tunable.space.default, [], False, False
    rivals = [
        each for each in dict.fromkeys((found.best, hand)) if each != default and not found.is_rejected(each)
    ]
    best: Setting = default
    gain: Comparison | None = None
    num_measured = sum(rival in confirmed.records for rival in rivals)
    for rival in rivals:
        compared = confirmed.faster(rival, default, num_comparisons=num_measured)
        words = tunable.space.words(rival)
        if rival not in confirmed.records:
            notes.append(f"{words} was not measured in fresh runs: no time was left for it")
        elif compared is None:
            notes.append(f"{words} did not run in fresh processes: {confirmed.records[rival].reason}")
        elif compared.verdict != "faster":
            is_undecided |= compared.verdict != "slower" and _scatters(compared)
            if rival == found.best:
                said = "is slower" if compared.verdict == "slower" else "was not shown to be faster"
                notes.append(f"the search's best, {words}, {said} in fresh runs: {_in_time(compared)}")
        elif tunable.mode == "infer" and _latency_worse(confirmed, rival, default):
            notes.append(f"{words} is faster, but its latency is worse than the default's: not chosen")
            is_late = True
        elif best == default or _beats(confirmed, rival, best):
            best, gain = rival, compared
    return Choice(best, gain, tuple(notes), is_undecided, is_late)


def answer(
    tunable: Answerable,
    found: Found,
    *,
    confirmed: Confirmed | None = None,
    hand: Setting | None = None,
    choice: Choice | None = None,
    cold: Mapping[Setting, ColdStart] | None = None,
    notes: Sequence[str] = (),
) -> TuneResult:
    """The answer; without fresh runs it is that of the search, and says so."""
    space, default = tunable.space, tunable.space.default
    winner = choice.winner if choice else _ahead(found, default)
    sides = _Sides(tunable, found, confirmed, cold or {}, choice)
    verdict, speedup, interval = _gain(found, choice, winner)
    over_hand, over_hand_interval = _over_hand(confirmed, winner, hand)
    machine = tunable.host
    tied = () if verdict == NO_DIFFERENCE else found.tied() if winner == found.best else ()
    return TuneResult(
        name=tunable.name,
        mode=tunable.mode,
        batch=tunable.batch,
        asked=tunable.asked,
        machine=f"{machine.allocation.num_cores} cores of {machine.facts.cpu_model}",
        verdict=verdict,
        default=sides.of(default),
        best=sides.of(winner),
        hand=sides.of(hand) if hand is not None and sides.is_measured(hand) else None,
        speedup=speedup,
        speedup_interval=interval,
        speedup_over_hand=over_hand,
        speedup_over_hand_interval=over_hand_interval,
        ladder=tuple(_ladder(tunable, confirmed, sides, winner)),
        measured=tuple(
            sides.of(each) for each in (confirmed.records if confirmed else ()) if sides.is_measured(each)
        ),
        tied=tuple(_tried(tunable, found.judged[each], found.judged.get(default)) for each in tied),
        tried=tuple(_tried(tunable, each, found.judged.get(default)) for each in found.judged.values()),
        left_out=(*tunable.offer.left_out, *together(found.untried)),
        finished=found.finished,
        is_undecided=choice is not None and choice.is_undecided,
        has_late=(choice is not None and choice.is_late)
        or any(each.outcome == "latency" for each in found.judged.values()),
        code=code_settings(space.params(winner)),
        notes=(*(choice.notes if choice else ()), *notes),
    )


class _Sides:
    """Settings with their figures: of fresh runs where there are such, else of the search."""

    def __init__(
        self,
        tunable: Answerable,
        found: Found,
        confirmed: Confirmed | None,
        cold: Mapping[Setting, ColdStart],
        choice: Choice | None,
    ) -> None:
        self.tunable, self.found, self.confirmed, self.cold = tunable, found, confirmed, cold
        self.choice = choice

    def is_measured(self, setting: Setting) -> bool:
        return self._record(setting) is not None

    def of(self, setting: Setting) -> Side:
        record = self._record(setting)
        if record is None:
            return self._searched(setting)
        metrics = record.metrics
        low, high = metrics.get("samples_per_s_low"), metrics.get("samples_per_s_high")
        over_default, over_default_interval = self._over_default(setting)
        return Side(
            params=record.params,
            words=self.tunable.space.words(setting),
            throughput=metrics["samples_per_s"],
            interval=(low, high) if low is not None and high is not None else None,
            latency_s=metrics["latency_p50_s"],
            memory_bytes=metrics.get("peak_memory_bytes", 0.0),
            gpu_memory_bytes=_gpu_memory(record),
            compile_s=metrics.get("compile_s", metrics.get("planning_s", 0.0)),
            check_error=None if is_unchecked([record]) else metrics.get("check_error"),
            command=self.cold[setting].command if setting in self.cold else record.command,
            over_default=over_default,
            over_default_interval=over_default_interval,
            trial_id=record.trial_id,
        )

    def _over_default(self, setting: Setting) -> tuple[float | None, Interval | None]:
        default = self.tunable.space.default
        return (None, None) if setting == default else _speedup(self.compared(setting, default))

    def compared(self, setting: Setting, base: Setting) -> Comparison | None:
        """Fresh runs of two settings; the winner's against the default as they were when it was chosen."""
        choice = self.choice
        if choice is not None and (setting, base) == (choice.winner, self.tunable.space.default):
            return choice.against
        return self.confirmed.faster(setting, base) if self.confirmed is not None else None

    def _searched(self, setting: Setting) -> Side:
        judged = self.found.judged.get(setting)
        return Side(
            params=self.tunable.space.params(setting),
            words=self.tunable.space.words(setting),
            throughput=judged.throughput if judged else 0.0,
            latency_s=judged.latency_s if judged else 0.0,
            check_error=judged.check_error if judged else None,
        )

    def _record(self, setting: Setting) -> Record | None:
        record = self.confirmed.records.get(setting) if self.confirmed else None
        return record if record is not None and record.status == "ok" else None


def _ahead(found: Found, default: Setting) -> Setting:
    """The search's best, or the default where that is tied with it: a start that ties is gone on from."""
    return default if default in found.tied() else found.best


def _gain(found: Found, choice: Choice | None, winner: Setting) -> tuple[str, float, Interval | None]:
    if choice is None:
        return UNCONFIRMED, math.exp(found.score) if winner == found.best else 1.0, None
    if choice.against is None or choice.against.ratio is None:
        return NO_DIFFERENCE, 1.0, None
    return FASTER, *inverted(choice.against)


def inverted(compared: Comparison) -> tuple[float, Interval | None]:
    """A ratio of times as a speed-up, with its interval."""
    assert compared.ratio is not None
    interval = compared.interval
    if interval is None or interval.low is None or interval.high is None:
        return 1 / compared.ratio, None
    return 1 / compared.ratio, (1 / interval.high, 1 / interval.low)


def _ladder(
    tunable: Answerable, confirmed: Confirmed | None, sides: _Sides, winner: Setting
) -> Sequence[Step]:
    """Each measured step from the default to the winner, knobs that were not measured alone together."""
    if confirmed is None:
        return ()
    space, before = tunable.space, tunable.space.default
    steps: list[Step] = []
    for setting in space.steps(winner):
        compared = sides.compared(setting, before)
        total = sides.compared(setting, space.default)
        if compared is None or total is None or compared.ratio is None or total.ratio is None:
            continue
        gain, interval = inverted(compared)
        changed = [knob.words(setting[i]) for i, knob in enumerate(space.knobs) if setting[i] != before[i]]
        side = replace(sides.of(setting), words=space.words(setting))
        steps.append(Step(", ".join(changed), side, gain, interval, 1 / total.ratio))
        before = setting
    return steps


def _over_hand(
    confirmed: Confirmed | None, winner: Setting, hand: Setting | None
) -> tuple[float | None, Interval | None]:
    if confirmed is None or hand is None or hand == winner:
        return None, None
    return _speedup(confirmed.faster(winner, hand))


def _speedup(compared: Comparison | None) -> tuple[float | None, Interval | None]:
    return (None, None) if compared is None or compared.ratio is None else inverted(compared)


def _beats(confirmed: Confirmed, rival: Setting, best: Setting) -> bool:
    compared = confirmed.faster(rival, best)
    return compared is not None and compared.verdict == "faster"


def _latency_worse(confirmed: Confirmed, setting: Setting, default: Setting) -> bool:
    """Whether the median step takes longer than the default's, beyond what may be chance."""
    ours, theirs = (confirmed.records[each].metrics for each in (setting, default))
    plainly = ours.get("step_s_low", ours["latency_p50_s"]) > theirs["latency_p50_s"]
    return plainly and ours["latency_p50_s"] > theirs["latency_p50_s"] * (1 + LATENCY_SLACK)


def _tried(tunable: Answerable, judged: Judged, default: Judged | None) -> Tried:
    latency_s = default.latency_s * math.exp(judged.latency_score) if default else judged.latency_s
    return Tried(
        words=tunable.space.words(judged.setting),
        params=tunable.space.params(judged.setting),
        outcome=judged.outcome,
        ratio=math.exp(judged.score) if judged.throughput else 0.0,
        throughput=judged.throughput,
        latency_s=latency_s if judged.throughput else 0.0,
        check_error=judged.check_error,
        reason=judged.reason,
    )


def _gpu_memory(record: Record) -> float:
    """The most that the ranks of a run took on their GPUs."""
    runs = [run.get("ranks") or () for run in record.runs]
    return max((sum(rank.get("peak_gpu_memory_bytes", 0) for rank in ranks) for ranks in runs), default=0)


def _in_time(compared: Comparison) -> str:
    """Why a comparison of times shows no gain, and what to do where they scatter too much to tell."""
    told = f"its time per sample: {compared.reason}"
    return f"{told}. {SCATTERS}" if _scatters(compared) else told


def _scatters(compared: Comparison) -> bool:
    """Whether the runs lie too far apart for "no difference" to say much."""
    interval = compared.interval
    if interval is None or interval.low is None or interval.high is None:
        return False
    return interval.high > TOO_WIDE * interval.low
