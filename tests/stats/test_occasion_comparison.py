"""Verdicts across occasions, on simulated machines that drift and are disturbed in bursts."""

import numpy as np
import pytest

from corewise.stats.occasion_comparison import OCCASION_MARGIN, compare_occasions
from corewise.stats.trial_comparison import compare_trials

NUM_PROCESSES = 18


def draw_occasion(rng: np.random.Generator, factor: float = 1.0) -> list[float]:
    """Process medians around 1: a drift of half a hundredth, and one-sided noise with a long tail."""
    drift = np.exp(rng.normal(0.0, 0.005))
    bursts = np.where(rng.random(NUM_PROCESSES) < 0.3, rng.exponential(0.06, NUM_PROCESSES), 0.0)
    return list(factor * drift * (1.0 + bursts + np.abs(rng.normal(0.0, 0.005, NUM_PROCESSES))))


def compute_verdict_rate(factor: float, rule: str) -> float:
    rng = np.random.default_rng(3)
    verdicts = []
    for _ in range(400):
        a, b = draw_occasion(rng), draw_occasion(rng, factor)
        verdict = compare_occasions(a, b) if rule == "occasions" else compare_trials(a, b)
        verdicts.append(verdict.verdict in ("faster", "slower"))
    return float(np.mean(verdicts))


def test_equal_trials_on_two_occasions_are_called_equal() -> None:
    assert compute_verdict_rate(1.0, "occasions") <= 0.05


def test_a_slowdown_of_five_per_cent_is_found() -> None:
    assert compute_verdict_rate(1.05, "occasions") >= 0.95


def test_student_on_the_same_data_misses_slowdowns() -> None:
    assert compute_verdict_rate(1.05, "student") < compute_verdict_rate(1.05, "occasions")


def test_swapping_the_two_swaps_the_verdict() -> None:
    rng = np.random.default_rng(4)
    a, b = draw_occasion(rng), draw_occasion(rng, 1.08)
    there, back = compare_occasions(a, b), compare_occasions(b, a)
    assert (there.verdict, back.verdict) == ("slower", "faster")
    assert there.ratio == pytest.approx(1 / (back.ratio or 0.0))
    assert there.interval is not None
    assert there.interval.low is not None
    assert there.interval.low < (there.ratio or 0.0) < (there.interval.high or 0.0)


def test_a_proven_difference_within_the_margin_is_the_same() -> None:
    a = [1.0 + 0.0001 * i for i in range(20)]
    comparison = compare_occasions(a, [1.01 * value for value in a])
    assert comparison.p_value is not None
    assert comparison.p_value < 0.001
    assert comparison.verdict == "same"
    assert f"{OCCASION_MARGIN:.0%}" in comparison.reason


def test_too_few_processes_for_ranks_are_left_to_student() -> None:
    comparison = compare_occasions([1.0, 1.01, 0.99], [2.0, 2.02, 1.98])
    assert comparison.verdict == "slower"
    assert "Mann-Whitney" not in comparison.method


def test_an_empty_side_gives_the_verdict_unknown() -> None:
    assert compare_occasions([], [1.0]).verdict == "unknown"
