"""Stopping on a narrow interval, and the price of having looked."""

import math

import numpy as np
import pytest

from corewise.stats.estimate import estimate_process_median
from corewise.stats.sequential_stopping import compute_level_per_look, should_stop

PLAN = {"min_runs": 5, "max_runs": 10, "target": 0.02, "confidence": 0.95}
# This plan looks early and often, where optional stopping matters most.
EAGER = {**PLAN, "min_runs": 3}
NUM_SIMULATIONS = 2000


def draw_lognormal_noise(random):
    return np.exp(0.03 * random.standard_normal(EAGER["max_runs"]))


def draw_heavy_tailed_noise(random):
    return np.exp(0.02 * random.standard_t(4, EAGER["max_runs"]))


def compute_corrected_interval(times):
    for num in range(1, len(times) + 1):
        decision = should_stop(times[:num], **EAGER)
        if decision.stop:
            return decision.interval
    raise AssertionError("the last look must stop")


def compute_naive_interval(times):
    for num in range(EAGER["min_runs"], len(times) + 1):
        interval = estimate_process_median(times[:num], EAGER["confidence"])
        if interval.relative_half_width <= EAGER["target"]:
            break
    return interval


def compute_coverage(rule, noise):
    random = np.random.default_rng(4)
    intervals = [rule(noise(random)) for _ in range(NUM_SIMULATIONS)]
    return sum(interval.low <= 1.0 <= interval.high for interval in intervals) / NUM_SIMULATIONS


@pytest.mark.parametrize("noise", [draw_lognormal_noise, draw_heavy_tailed_noise])
def test_the_final_interval_covers_the_truth_as_often_as_it_says(noise):
    assert compute_coverage(compute_corrected_interval, noise) >= 0.95


def test_the_same_rule_without_correction_covers_too_seldom():
    # Series that are narrow by luck stop early: about 91 % instead of 95 %.
    assert compute_coverage(compute_naive_interval, draw_lognormal_noise) < 0.94


def test_the_level_lies_between_an_even_split_and_no_correction():
    assert 0.05 / 6 < compute_level_per_look(5, 10, 0.95) < 0.05
    assert compute_level_per_look(5, 10, 0.95) == pytest.approx(0.0172, abs=0.0005)


def test_one_look_needs_no_correction():
    assert compute_level_per_look(5, 5, 0.95) == pytest.approx(0.05)
    assert compute_level_per_look(1, 2, 0.95) == pytest.approx(0.05)


def test_more_looks_leave_less_for_each():
    levels = [compute_level_per_look(5, last, 0.95) for last in (5, 6, 10, 30, 1000)]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == pytest.approx(0.05 / 996)


def test_all_looks_together_keep_the_error_rate():
    random = np.random.default_rng(5)
    level = compute_level_per_look(5, 10, 0.95)
    missed = 0
    for times in np.exp(0.03 * random.standard_normal((1000, 10))):
        looks = [estimate_process_median(times[:num], 1 - level) for num in range(5, 11)]
        missed += any(not look.low <= 1.0 <= look.high for look in looks)
    assert missed / 1000 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)


def test_nothing_stops_before_the_least_number_of_runs():
    decision = should_stop([1.0] * 4, **PLAN)
    assert not decision.stop
    assert decision.reason == "4 of at least 5 runs"
    assert should_stop([], **PLAN).interval is None


def test_equal_values_stop_at_the_least_number_of_runs():
    decision = should_stop([1.0] * 5, **PLAN)
    assert decision.stop
    assert (decision.interval.low, decision.interval.high) == (1.0, 1.0)


def test_wide_intervals_continue_until_the_limit_and_give_the_reason():
    times = [1.0, 2.0] * 5
    assert not should_stop(times[:9], **PLAN).stop
    decision = should_stop(times, **PLAN)
    assert decision.stop
    assert "limit of 10 runs" in decision.reason
    assert "wider than ±2.00%" in decision.reason


def test_the_interval_reported_is_the_corrected_one():
    times = [1.0, 1.01, 0.99, 1.0, 1.02]
    decision = should_stop(times, **PLAN)
    plain = estimate_process_median(times, 0.95)
    assert decision.interval.low < plain.low
    assert decision.interval.high > plain.high
    assert decision.interval.confidence == 0.95
    assert "looks at 5 to 10 runs" in decision.interval.method


def test_a_single_run_allowed_stops_without_interval_and_says_so():
    decision = should_stop([1.0], min_runs=1, max_runs=1, target=0.02)
    assert decision.stop
    assert decision.interval.low is None
    assert "at least 2" in decision.reason


@pytest.mark.parametrize(
    "change", [{"min_runs": 0}, {"max_runs": 4}, {"target": -0.1}, {"target": math.nan}, {"confidence": 1.0}]
)
def test_impossible_plans_are_refused(change):
    with pytest.raises(ValueError, match=r"needed|must"):
        should_stop([1.0], **{**PLAN, **change})


@pytest.mark.parametrize("bad", [[math.nan], [math.inf], [-1.0], [0.0]])
def test_times_that_no_clock_gives_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        should_stop(bad, **PLAN)


def test_nothing_stops_before_the_first_run():
    assert not should_stop([], min_runs=1, max_runs=3, target=0.5, confidence=0.95).stop
