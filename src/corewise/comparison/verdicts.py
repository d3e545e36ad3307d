"""Matched trials -> a verdict for each, corrected for their number."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corewise.comparison.model import ComparedTrial, Rule, Verdict
from corewise.comparison.sides import Measured
from corewise.report.words import counted
from corewise.stats.occasions import OCCASION_MARGIN
from corewise.stats.pairs import Looks, Pair, PairTests, compare_pairs, level_of

CONFIDENCE = 0.95
LEAST_QUIET = 3  # undisturbed processes a side that can judge without the disturbed ones
PER_SAMPLE = "seconds per sample"
_ORDER: Mapping[str, int] = {"slower": 0, "faster": 1, "same": 2}


@dataclass(frozen=True)
class Partners:
    """Two trials to be compared, and what matters of how they were measured."""

    a: Measured
    b: Measured
    looks: Looks
    interleaved: bool


@dataclass(frozen=True)
class _Found:
    """What the tests say of one pair."""

    ratio: float | None
    low: float | None
    high: float | None
    p_value: float | None
    adjusted: float | None
    effect: float | None
    by_ranks: bool


def judge(
    partners: Sequence[Partners], rule: Rule, name_of: Callable[[dict[str, Any]], str]
) -> list[ComparedTrial]:
    """The pairs with their verdicts, worst first: slower, faster, then the same, each by size of effect."""
    pairs = [Pair(*_times(each, rule), each.looks, each.interleaved) for each in partners]
    tests = compare_pairs(pairs, rule.confidence)
    judged = [
        _judged(each, pair, found, rule, name_of(each.a.params))
        for each, pair, found in zip(partners, pairs, _each_found(tests), strict=True)
    ]
    return sorted(judged, key=_worst_first)


def _each_found(tests: PairTests) -> Iterator[_Found]:
    columns = (tests.ratio, tests.low, tests.high, tests.p_value, tests.adjusted, tests.effect)
    rows = zip(*(values.tolist() for values in columns), tests.by_ranks.tolist(), strict=True)
    for *values, by_ranks in rows:
        ratio, low, high, p_value, adjusted, effect = (None if math.isnan(each) else each for each in values)
        yield _Found(ratio, low, high, p_value, adjusted, effect, by_ranks)


def make_rule(
    partners: Sequence[tuple[Measured, Measured]], threshold: float, ignore_disturbed: bool = False
) -> Rule:
    """The rule for these pairs: steps that hold different numbers of samples are compared per sample."""
    differ = any(
        a.samples_per_step != b.samples_per_step
        for a, b in partners
        if not math.isnan(a.samples_per_step + b.samples_per_step)
    )
    metric = PER_SAMPLE if differ else "step_s"
    return Rule(
        metric=metric,
        confidence=CONFIDENCE,
        margin=OCCASION_MARGIN,
        threshold=threshold,
        ignore_disturbed=ignore_disturbed,
    )


def stricter_looks(a: Looks, b: Looks, confidence: float = CONFIDENCE) -> Looks:
    """Of two protocols' looks those that ask for more evidence."""
    return a if a == b else min(a, b, key=lambda looks: level_of(looks, confidence))


def _times(each: Partners, rule: Rule) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The times that are compared: all, or only the undisturbed ones where that is asked for and enough."""
    quiet_a, quiet_b = _quiet(each.a, rule), _quiet(each.b, rule)
    if rule.ignore_disturbed and min(len(quiet_a), len(quiet_b)) >= LEAST_QUIET:
        return quiet_a, quiet_b
    return _all(each.a, rule), _all(each.b, rule)


def _all(trial: Measured, rule: Rule) -> tuple[float, ...]:
    return trial.sample_s if rule.metric == PER_SAMPLE else trial.step_s


def _quiet(trial: Measured, rule: Rule) -> tuple[float, ...]:
    return trial.quiet_sample_s if rule.metric == PER_SAMPLE else trial.quiet_step_s


def _judged(each: Partners, pair: Pair, found: _Found, rule: Rule, name: str) -> ComparedTrial:
    verdict = _verdict(pair, found, rule)
    num_a, num_b = (len(_all(side, rule)) - len(_quiet(side, rule)) for side in (each.a, each.b))
    compared_all = len(pair.a) + len(pair.b) == len(_all(each.a, rule)) + len(_all(each.b, rule))
    in_doubt = compared_all and _may_account(verdict, num_a, num_b)
    reason = ""
    if in_doubt and rule.ignore_disturbed:
        verdict, reason = "same", _too_few_quiet(each, rule)
    undecided = bool(reason) or (verdict == "same" and _could_differ(found, rule))
    return ComparedTrial(
        name=name,
        a_trial_id=each.a.trial_id,
        b_trial_id=each.b.trial_id,
        params_json=each.a.params_json,
        verdict=verdict,
        undecided=undecided,
        regression=verdict == "slower" and (found.ratio or 0.0) > 1 + rule.threshold,
        reason=reason or _reason(pair, found, verdict, undecided, rule),
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        adjusted_p_value=found.adjusted,
        effect_size=found.effect,
        method="Mann-Whitney" if found.by_ranks else "Welch",
        interleaved=pair.interleaved,
        a_time_s=_middle(pair.a, found.by_ranks),
        b_time_s=_middle(pair.b, found.by_ranks),
        a_num_processes=len(pair.a),
        b_num_processes=len(pair.b),
        a_num_disturbed=num_a,
        b_num_disturbed=num_b,
        in_doubt=in_doubt,
    )


def _middle(times_s: Sequence[float], by_ranks: bool) -> float | None:
    """What the ratio is of: Welch's t compares geometric means, ranks stand for medians."""
    if not times_s:
        return None
    return statistics.median(times_s) if by_ranks else math.exp(statistics.fmean(map(math.log, times_s)))


def _may_account(verdict: Verdict, num_disturbed_a: int, num_disturbed_b: int) -> bool:
    """True when disturbed processes may account for the verdict: others only ever make a side slower."""
    if verdict == "same":
        return num_disturbed_a + num_disturbed_b > 0
    return (num_disturbed_b if verdict == "slower" else num_disturbed_a) > 0


def _too_few_quiet(each: Partners, rule: Rule) -> str:
    left = " and ".join(
        f"{len(_quiet(side, rule))} of {counted(len(_all(side, rule)), 'process', 'processes')} of {letter}"
        for letter, side in (("A", each.a), ("B", each.b))
    )
    return f"the data cannot tell: undisturbed were {left}; at least {LEAST_QUIET} on each side are needed"


def _is_shown(found: _Found, rule: Rule) -> bool:
    return found.adjusted is not None and found.adjusted <= 1 - rule.confidence + 1e-12


def _verdict(pair: Pair, found: _Found, rule: Rule) -> Verdict:
    margin = 0.0 if pair.interleaved else rule.margin
    if found.ratio is None or not _is_shown(found, rule) or 1 / (1 + margin) <= found.ratio <= 1 + margin:
        return "same"
    return "slower" if found.ratio > 1 else "faster"


def _could_differ(found: _Found, rule: Rule) -> bool:
    """True when a difference that matters remains possible."""
    if found.low is None or found.high is None:
        return True
    bound = 1 + max(rule.threshold, rule.margin)
    return found.low < 1 / bound or found.high > bound


def _reason(pair: Pair, found: _Found, verdict: Verdict, undecided: bool, rule: Rule) -> str:
    if found.ratio is None or found.low is None or found.high is None:
        sides = f"{counted(len(pair.a), 'process', 'processes')} of A and {len(pair.b)} of B"
        return f"the data cannot tell: {sides}; at least 2 on each side are needed"
    change = f"{_change(found.ratio)} ({_change(found.low)} to {_change(found.high)})"
    if verdict != "same":
        return f"time of B against A: {change}"
    if undecided:
        return f"the data cannot tell: {change}; run more processes"
    if _is_shown(found, rule):
        return f"within the ±{rule.margin:.0%} by which occasions differ: {change}"
    alone = found.p_value is not None and found.p_value <= 1 - rule.confidence
    return f"no difference shown{' among so many trials' if alone else ''}: {change}"


def _change(ratio: float) -> str:
    """A ratio as a change in per cent, or as a factor where that is easier to read."""
    return f"{ratio - 1:+.1%}" if ratio < 10 else f"×{ratio:.3g}"


def _worst_first(trial: ComparedTrial) -> tuple[int, float]:
    size = abs(math.log(trial.ratio)) if trial.ratio else 0.0
    return _ORDER[trial.verdict], -size
