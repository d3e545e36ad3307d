"""Judge matched trials, corrected for their number."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from corewise.analysis.comparison.comparison_model import ComparedTrial, Verdict, VerdictRule
from corewise.analysis.comparison.sides import MeasuredTrial
from corewise.stats.batch_comparison import Looks, Pair, PairTests, compare_pairs, compute_level
from corewise.stats.occasion_comparison import OCCASION_MARGIN
from corewise.text_format import format_count

CONFIDENCE = 0.95
# Undisturbed processes that each side needs for a verdict without the disturbed ones.
MIN_QUIET_PROCESSES = 3
PER_SAMPLE = "seconds per sample"
_ORDER: Mapping[str, int] = {"slower": 0, "faster": 1, "same": 2}


@dataclass(frozen=True)
class Partners:
    """Two trials to compare, their stopping rule, and whether they were interleaved."""

    a: MeasuredTrial
    b: MeasuredTrial
    looks: Looks
    interleaved: bool


@dataclass(frozen=True)
class _PairResult:
    """The test results of one pair."""

    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None
    adjusted: float | None
    effect: float | None
    by_ranks: bool


def judge_pairs(
    partners: Sequence[Partners], rule: VerdictRule, describe_trial: Callable[[MeasuredTrial], str]
) -> list[ComparedTrial]:
    """Return the pairs with their verdicts: slower, faster, then same, each by size of the effect."""
    pairs = [Pair(*_select_times(each, rule), each.looks, each.interleaved) for each in partners]
    tests = compare_pairs(pairs, rule.confidence)
    judged = [
        _judge_pair(each, pair, result, rule, describe_trial(each.a))
        for each, pair, result in zip(partners, pairs, _iterate_results(tests), strict=True)
    ]
    return sorted(judged, key=_rank_severity)


def _iterate_results(tests: PairTests) -> Iterator[_PairResult]:
    columns = (tests.ratio, tests.low, tests.high, tests.p_value, tests.adjusted, tests.effect)
    rows = zip(*(values.tolist() for values in columns), tests.by_ranks.tolist(), strict=True)
    for *values, by_ranks in rows:
        ratio, low, high, p_value, adjusted, effect = (None if math.isnan(each) else each for each in values)
        yield _PairResult(ratio, low, high, p_value, adjusted, effect, by_ranks)


def build_rule(
    partners: Sequence[tuple[MeasuredTrial, MeasuredTrial]], threshold: float, ignore_disturbed: bool = False
) -> VerdictRule:
    """Build the rule; steps with different numbers of samples are compared per sample."""
    differ = any(
        a.samples_per_step != b.samples_per_step
        for a, b in partners
        if not math.isnan(a.samples_per_step + b.samples_per_step)
    )
    metric = PER_SAMPLE if differ else "step_s"
    return VerdictRule(
        metric=metric,
        confidence=CONFIDENCE,
        margin=OCCASION_MARGIN,
        threshold=threshold,
        ignore_disturbed=ignore_disturbed,
    )


def choose_stricter_looks(a: Looks, b: Looks, confidence: float = CONFIDENCE) -> Looks:
    """Return the stopping rule that requires more evidence."""
    return a if a == b else min(a, b, key=lambda looks: compute_level(looks, confidence))


def _select_times(each: Partners, rule: VerdictRule) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Select the times to compare: all, or the undisturbed ones if requested and sufficient."""
    quiet_a, quiet_b = _get_quiet_times(each.a, rule), _get_quiet_times(each.b, rule)
    if rule.ignore_disturbed and min(len(quiet_a), len(quiet_b)) >= MIN_QUIET_PROCESSES:
        return quiet_a, quiet_b
    return _get_all_times(each.a, rule), _get_all_times(each.b, rule)


def _get_all_times(trial: MeasuredTrial, rule: VerdictRule) -> tuple[float, ...]:
    return trial.sample_s if rule.metric == PER_SAMPLE else trial.step_s


def _get_quiet_times(trial: MeasuredTrial, rule: VerdictRule) -> tuple[float, ...]:
    return trial.quiet_sample_s if rule.metric == PER_SAMPLE else trial.quiet_step_s


def _judge_pair(each: Partners, pair: Pair, result: _PairResult, rule: VerdictRule, name: str) -> ComparedTrial:
    verdict = _decide_verdict(pair, result, rule)
    num_a, num_b = (len(_get_all_times(side, rule)) - len(_get_quiet_times(side, rule)) for side in (each.a, each.b))
    compared_all = len(pair.a) + len(pair.b) == len(_get_all_times(each.a, rule)) + len(_get_all_times(each.b, rule))
    in_doubt = compared_all and _can_explain_verdict(verdict, num_a, num_b)
    reason = ""
    if in_doubt and rule.ignore_disturbed:
        verdict, reason = "same", _explain_too_few_quiet(each, rule)
    undecided = bool(reason) or (verdict == "same" and _can_differ(result, rule))
    return ComparedTrial(
        name=name,
        a_trial_id=each.a.trial_id,
        b_trial_id=each.b.trial_id,
        params_json=each.a.params_json,
        verdict=verdict,
        undecided=undecided,
        regression=verdict == "slower" and (result.ratio or 0.0) > 1 + rule.threshold,
        reason=reason or _explain_verdict(pair, result, verdict, undecided, rule),
        ratio=result.ratio,
        low=result.low,
        high=result.high,
        p_value=result.p_value,
        adjusted_p_value=result.adjusted,
        effect_size=result.effect,
        method="Mann-Whitney" if result.by_ranks else "Welch",
        interleaved=pair.interleaved,
        a_time_s=_compute_typical_time(pair.a, result.by_ranks),
        b_time_s=_compute_typical_time(pair.b, result.by_ranks),
        a_num_processes=len(pair.a),
        b_num_processes=len(pair.b),
        a_num_disturbed=num_a,
        b_num_disturbed=num_b,
        in_doubt=in_doubt,
    )


def _compute_typical_time(times_s: Sequence[float], by_ranks: bool) -> float | None:
    """Compute the value behind the ratio: geometric mean for Welch's t, median for ranks."""
    if not times_s:
        return None
    return statistics.median(times_s) if by_ranks else math.exp(statistics.fmean(map(math.log, times_s)))


def _can_explain_verdict(verdict: Verdict, num_disturbed_a: int, num_disturbed_b: int) -> bool:
    """Return True if disturbances, which only slow a side down, may explain the verdict."""
    if verdict == "same":
        return num_disturbed_a + num_disturbed_b > 0
    return (num_disturbed_b if verdict == "slower" else num_disturbed_a) > 0


def _explain_too_few_quiet(each: Partners, rule: VerdictRule) -> str:
    counts = []
    for letter, side in (("A", each.a), ("B", each.b)):
        num_all, num_quiet = len(_get_all_times(side, rule)), len(_get_quiet_times(side, rule))
        counts.append(f"{num_quiet} of {format_count(num_all, 'process', 'processes')} of {letter}")
    return (
        f"the data cannot tell: undisturbed were {' and '.join(counts)}; "
        f"at least {MIN_QUIET_PROCESSES} on each side are needed"
    )


def _is_significant(result: _PairResult, rule: VerdictRule) -> bool:
    return result.adjusted is not None and result.adjusted <= 1 - rule.confidence + 1e-12


def _decide_verdict(pair: Pair, result: _PairResult, rule: VerdictRule) -> Verdict:
    margin = 0.0 if pair.interleaved else rule.margin
    if result.ratio is None or not _is_significant(result, rule) or 1 / (1 + margin) <= result.ratio <= 1 + margin:
        return "same"
    return "slower" if result.ratio > 1 else "faster"


def _can_differ(result: _PairResult, rule: VerdictRule) -> bool:
    """Return True if a relevant difference remains possible."""
    if result.low is None or result.high is None:
        return True
    bound = 1 + max(rule.threshold, rule.margin)
    return result.low < 1 / bound or result.high > bound


def _explain_verdict(pair: Pair, result: _PairResult, verdict: Verdict, undecided: bool, rule: VerdictRule) -> str:
    if result.ratio is None or result.low is None or result.high is None:
        sides = f"{format_count(len(pair.a), 'process', 'processes')} of A and {len(pair.b)} of B"
        return f"the data cannot tell: {sides}; at least 2 on each side are needed"
    change = f"{_format_change(result.ratio)} ({_format_change(result.low)} to {_format_change(result.high)})"
    if verdict != "same":
        return f"time of B against A: {change}"
    if undecided:
        return f"the data cannot tell: {change}; run more processes"
    if _is_significant(result, rule):
        return f"within the ±{rule.margin:.0%} by which occasions differ: {change}"
    alone = result.p_value is not None and result.p_value <= 1 - rule.confidence
    return f"no difference shown{' among all trials' if alone else ''}: {change}"


def _format_change(ratio: float) -> str:
    """Format a ratio as a change in per cent, or as a factor if it is large."""
    return f"{ratio - 1:+.1%}" if ratio < 10 else f"×{ratio:.3g}"


def _rank_severity(trial: ComparedTrial) -> tuple[int, float]:
    size = abs(math.log(trial.ratio)) if trial.ratio else 0.0
    return _ORDER[trial.verdict], -size
