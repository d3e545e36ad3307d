"""Build the result of a tuning from its search and confirmation: winner, gain, and gain per knob."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from corewise.analysis.columns import get_run_rates
from corewise.analysis.tuning_results import (
    FASTER,
    NO_DIFFERENCE,
    NOT_MEASURED,
    UNCONFIRMED,
    Interval,
    LadderStep,
    RacedSetting,
    SettingResult,
)
from corewise.launch.code_settings import list_code_settings
from corewise.measured.trial import REFUSALS
from corewise.run.machine_view import Host
from corewise.stats.trial_comparison import Comparison
from corewise.study.record import Record
from corewise.tuning.confirm.cold_start import ColdStart
from corewise.tuning.confirm.confirmation_runs import Confirmation, is_unchecked
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.coordinate_search import LATENCY_SLACK
from corewise.tuning.search.judgements import Judgement, SearchState
from corewise.tuning.search.knobs import Offer, group_by_reason
from corewise.tuning.search.rejection_causes import RejectedChoice, group_rejections
from corewise.tuning.search.setting_space import Setting, Space

# Upper over lower end of a confidence interval; a wider one means that the runs are too noisy.
MAX_INTERVAL_RATIO = 1.2
NOISY_RUNS = "The runs are too noisy to decide: repeat with --again on a quieter machine, or with more --budget"


class TuningTarget(Protocol):
    """The subject of a tuning: a workload or a script."""

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
class WinnerChoice:
    """The winner of the confirmation and its gain over the default.

    Attributes:
        against: The comparison of the winner with the default; None if the default won.
        notes: Why other candidates were not chosen.
        is_undecided: The runs of a candidate are too noisy to decide.
        has_worse_latency: A candidate was faster, but with a worse latency.
        disagreement: How race and fresh runs of the best setting disagree, if they do.
    """

    winner: Setting
    against: Comparison | None
    notes: tuple[str, ...] = ()
    is_undecided: bool = False
    has_worse_latency: bool = False
    disagreement: str = ""

    def resolve_disagreement(
        self, disagreement: str, earlier: "WinnerChoice | None", default: Setting
    ) -> "WinnerChoice":
        """Return the choice if race and fresh runs disagree.

        The winner stays only if fresh runs were repeated, and if both times the same setting won. Otherwise
        nothing is recommended.
        """
        is_repeated = earlier is not None and earlier.winner == self.winner != default
        if is_repeated:
            return replace(self, disagreement=disagreement)
        return replace(self, winner=default, against=None, disagreement=disagreement)


def choose_winner(tunable: TuningTarget, state: SearchState, hand: Setting, confirmation: Confirmation) -> WinnerChoice:
    """Choose the winner by fresh runs alone: the best of the search, the hand setting, or the default."""
    default, notes, is_undecided, has_worse_latency = tunable.space.default, [], False, False
    rivals = [each for each in dict.fromkeys((state.best, hand)) if each != default and not state.is_rejected(each)]
    best: Setting = default
    gain: Comparison | None = None
    num_measured = sum(rival in confirmation.records for rival in rivals)
    for rival in rivals:
        compared = confirmation.compare(rival, default, num_comparisons=num_measured)
        text = tunable.space.describe(rival)
        if rival not in confirmation.records:
            if rival == state.best:
                notes.append(f"{text} was not measured in fresh runs: the budget was used up")
        elif compared is None:
            notes.append(f"{text} failed in fresh processes: {confirmation.records[rival].reason}")
        elif compared.verdict != "faster":
            is_undecided |= compared.verdict != "slower" and _is_too_noisy(compared)
            if rival == state.best:
                speed = "is slower" if compared.verdict == "slower" else "is not significantly faster"
                reason = _explain_no_gain(compared)
                notes.append(f"the best setting of the search, {text}, {speed} in fresh runs: {reason}")
        elif tunable.mode == "infer" and _has_worse_latency(confirmation, rival, default):
            notes.append(f"{text} is faster, but its latency is worse than the default's: not chosen")
            has_worse_latency = True
        elif best == default or _is_faster(confirmation, rival, best):
            best, gain = rival, compared
    return WinnerChoice(best, gain, tuple(notes), is_undecided, has_worse_latency)


def build_answer(
    tunable: TuningTarget,
    state: SearchState,
    *,
    confirmation: Confirmation | None = None,
    hand: Setting | None = None,
    choice: WinnerChoice | None = None,
    cold: Mapping[Setting, ColdStart] | None = None,
    notes: Sequence[str] = (),
    cautions: Sequence[str] = (),
    is_disturbed: bool = False,
) -> TuneResult:
    """Build the result; without a confirmation it is that of the search, marked as unconfirmed."""
    space, default = tunable.space, tunable.space.default
    winner = choice.winner if choice else _pick_search_winner(state, default)
    sides = _ResultBuilder(tunable, state, confirmation, cold or {}, choice)
    verdict, speedup, interval = _summarize_gain(state, choice, winner)
    if verdict == NO_DIFFERENCE and _has_only_failures(state, default, confirmation):
        verdict = NOT_MEASURED
    over_hand, over_hand_interval = _compare_with_hand(confirmation, winner, hand)
    machine = tunable.host
    tied = () if verdict in (NO_DIFFERENCE, NOT_MEASURED) else state.find_tied() if winner == state.best else ()
    return TuneResult(
        name=tunable.name,
        mode=tunable.mode,
        batch=tunable.batch,
        asked=tunable.asked,
        machine=f"{machine.allocation.num_cores} cores of {machine.facts.cpu_model}",
        verdict=verdict,
        default=sides.build(default),
        best=sides.build(winner),
        hand=sides.build(hand) if hand is not None and sides.is_measured(hand) else None,
        speedup=speedup,
        speedup_interval=interval,
        speedup_over_hand=over_hand,
        speedup_over_hand_interval=over_hand_interval,
        ladder=tuple(_build_ladder(tunable, confirmation, sides, winner)),
        measured=tuple(
            sides.build(each) for each in (confirmation.records if confirmation else ()) if sides.is_measured(each)
        ),
        tied=tuple(
            _build_raced_setting(tunable, state.judgements[each], state.judgements.get(default)) for each in tied
        ),
        tried=tuple(
            _build_raced_setting(tunable, each, state.judgements.get(default)) for each in state.judgements.values()
        ),
        rejected=_list_rejected(space, state),
        left_out=(*tunable.offer.left_out, *group_by_reason(state.untried)),
        finished=state.finished,
        is_undecided=choice is not None and choice.is_undecided,
        is_disturbed=is_disturbed,
        disagreement=choice.disagreement if choice else "",
        has_worse_latency=(choice is not None and choice.has_worse_latency)
        or any(each.outcome == "latency" for each in state.judgements.values()),
        code=list_code_settings(space.build_params(winner)),
        notes=(*(choice.notes if choice else ()), *notes, *cautions),
        cautions=tuple(cautions),
    )


def _list_rejected(space: Space, state: SearchState) -> tuple[RejectedChoice, ...]:
    rejections = [
        (space.describe(each.setting), space.build_params(each.setting), each.reason)
        for each in state.judgements.values()
        if each.outcome == "rejected"
    ]
    return group_rejections(rejections, state.causes)


class _ResultBuilder:
    """Builds the figures of settings: from fresh runs if there are any, else from the search."""

    def __init__(
        self,
        tunable: TuningTarget,
        state: SearchState,
        confirmation: Confirmation | None,
        cold: Mapping[Setting, ColdStart],
        choice: WinnerChoice | None,
    ) -> None:
        self.tunable, self.state, self.confirmation, self.cold = tunable, state, confirmation, cold
        self.choice = choice

    def is_measured(self, setting: Setting) -> bool:
        return self._find_record(setting) is not None

    def build(self, setting: Setting) -> SettingResult:
        record = self._find_record(setting)
        if record is None:
            return self._build_from_search(setting)
        metrics = record.metrics
        low, high = metrics.get("samples_per_s_low"), metrics.get("samples_per_s_high")
        over_default, over_default_interval = self._compare_with_default(setting)
        return SettingResult(
            params=record.params,
            label=self.tunable.space.describe(setting),
            throughput=_compute_mean_rate(record),
            interval=(low, high) if low is not None and high is not None else None,
            latency_s=metrics["latency_p50_s"],
            memory_bytes=metrics.get("peak_memory_bytes", 0.0),
            gpu_memory_bytes=_find_peak_gpu_memory(record),
            compile_s=metrics.get("compile_s", metrics.get("planning_s", 0.0)),
            check_error=None if is_unchecked([record]) else metrics.get("check_error"),
            command=self.cold[setting].command if setting in self.cold else record.command,
            over_default=over_default,
            over_default_interval=over_default_interval,
            trial_id=record.trial_id,
        )

    def _compare_with_default(self, setting: Setting) -> tuple[float | None, Interval | None]:
        default = self.tunable.space.default
        return (None, None) if setting == default else _compute_speedup(self.compare(setting, default))

    def compare(self, setting: Setting, base: Setting) -> Comparison | None:
        """Compare fresh runs of two settings; for winner and default, return the comparison that decided."""
        choice = self.choice
        if choice is not None and (setting, base) == (choice.winner, self.tunable.space.default):
            return choice.against
        return self.confirmation.compare(setting, base) if self.confirmation is not None else None

    def _build_from_search(self, setting: Setting) -> SettingResult:
        judgement = self.state.judgements.get(setting)
        return SettingResult(
            params=self.tunable.space.build_params(setting),
            label=self.tunable.space.describe(setting),
            throughput=judgement.throughput if judgement else 0.0,
            latency_s=judgement.latency_s if judgement else 0.0,
            check_error=judgement.check_error if judgement else None,
        )

    def _find_record(self, setting: Setting) -> Record | None:
        record = self.confirmation.records.get(setting) if self.confirmation else None
        return record if record is not None and record.status == "ok" else None


def _pick_search_winner(state: SearchState, default: Setting) -> Setting:
    """Return the best of the search, or the default if both are tied (a good start wins a tie)."""
    return default if default in state.find_tied() else state.best


def _summarize_gain(
    state: SearchState, choice: WinnerChoice | None, winner: Setting
) -> tuple[str, float, Interval | None]:
    if choice is None:
        return UNCONFIRMED, math.exp(state.score) if winner == state.best else 1.0, None
    if choice.against is None or choice.against.ratio is None:
        return NO_DIFFERENCE, 1.0, None
    return FASTER, *convert_to_speedup(choice.against)


def _has_only_failures(state: SearchState, default: Setting, confirmation: Confirmation | None) -> bool:
    """Return whether every other setting that could run here failed, in the search or in fresh runs."""
    others = [each for each in state.judgements.values() if each.setting != default]
    has_compared = any(each.outcome != "rejected" for each in others)
    if not has_compared and any(each.category not in (*REFUSALS, "check") for each in others):
        return True
    fresh = [record for setting, record in (confirmation.records if confirmation else {}).items() if setting != default]
    return bool(fresh) and all(record.status == "failed" for record in fresh)


def convert_to_speedup(compared: Comparison) -> tuple[float, Interval | None]:
    """Convert a ratio of times into a speed-up with its interval."""
    assert compared.ratio is not None
    interval = compared.interval
    if interval is None or interval.low is None or interval.high is None:
        return 1 / compared.ratio, None
    return 1 / compared.ratio, (1 / interval.high, 1 / interval.low)


def _build_ladder(
    tunable: TuningTarget, confirmation: Confirmation | None, sides: _ResultBuilder, winner: Setting
) -> Sequence[LadderStep]:
    """Build the measured steps from default to winner; knobs that were not measured alone share a step."""
    if confirmation is None:
        return ()
    space, before = tunable.space, tunable.space.default
    steps: list[LadderStep] = []
    for setting in space.list_steps(winner):
        compared = sides.compare(setting, before)
        total = sides.compare(setting, space.default)
        if compared is None or total is None or compared.ratio is None or total.ratio is None:
            continue
        gain, interval = convert_to_speedup(compared)
        changed = [knob.describe(setting[i]) for i, knob in enumerate(space.knobs) if setting[i] != before[i]]
        side = replace(sides.build(setting), label=space.describe(setting))
        steps.append(LadderStep(", ".join(changed), side, gain, interval, 1 / total.ratio))
        before = setting
    return steps


def _compare_with_hand(
    confirmation: Confirmation | None, winner: Setting, hand: Setting | None
) -> tuple[float | None, Interval | None]:
    if confirmation is None or hand is None or hand == winner:
        return None, None
    return _compute_speedup(confirmation.compare(winner, hand))


def _compute_speedup(compared: Comparison | None) -> tuple[float | None, Interval | None]:
    return (None, None) if compared is None or compared.ratio is None else convert_to_speedup(compared)


def _is_faster(confirmation: Confirmation, rival: Setting, best: Setting) -> bool:
    compared = confirmation.compare(rival, best)
    return compared is not None and compared.verdict == "faster"


def _has_worse_latency(confirmation: Confirmation, setting: Setting, default: Setting) -> bool:
    """Return whether the median step is significantly longer than the default's."""
    ours, theirs = (confirmation.records[each].metrics for each in (setting, default))
    is_significant = ours.get("step_s_low", ours["latency_p50_s"]) > theirs["latency_p50_s"]
    return is_significant and ours["latency_p50_s"] > theirs["latency_p50_s"] * (1 + LATENCY_SLACK)


def _build_raced_setting(tunable: TuningTarget, judgement: Judgement, default: Judgement | None) -> RacedSetting:
    latency_s = default.latency_s * math.exp(judgement.latency_score) if default else judgement.latency_s
    return RacedSetting(
        label=tunable.space.describe(judgement.setting),
        params=tunable.space.build_params(judgement.setting),
        outcome=judgement.outcome,
        ratio=math.exp(judgement.score) if judgement.throughput else 0.0,
        throughput=judgement.throughput,
        latency_s=latency_s if judgement.throughput else 0.0,
        check_error=judgement.check_error,
        reason=judgement.reason,
    )


def _compute_mean_rate(record: Record) -> float:
    """Compute the geometric mean of the runs: gains are ratios of these means, so figures and gains agree."""
    rates = get_run_rates(record)
    return statistics.geometric_mean(rates) if rates else record.metrics["samples_per_s"]


def _find_peak_gpu_memory(record: Record) -> float:
    """Return the largest GPU memory that the ranks of a run used together."""
    runs = [run.get("ranks") or () for run in record.runs]
    return max((sum(rank.get("peak_gpu_memory_bytes", 0) for rank in ranks) for ranks in runs), default=0)


def _explain_no_gain(compared: Comparison) -> str:
    """Explain why a comparison shows no gain, and what to do if the runs are too noisy."""
    reason = f"its time per sample: {compared.reason}"
    return f"{reason}. {NOISY_RUNS}" if _is_too_noisy(compared) else reason


def _is_too_noisy(compared: Comparison) -> bool:
    """Return whether the interval is too wide for "no difference" to mean much."""
    interval = compared.interval
    if interval is None or interval.low is None or interval.high is None:
        return False
    return interval.high > MAX_INTERVAL_RATIO * interval.low
