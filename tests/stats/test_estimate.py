"""One set of values: its interval covers what it should, and it says when it has none."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.stats.estimate import (
    Estimate,
    compute_quantile,
    describe_values,
    estimate_mean,
    estimate_median,
    estimate_process_median,
)

times = st.floats(min_value=1e-9, max_value=1e6)
several_times = st.lists(times, min_size=2, max_size=40)
single_set_functions = [estimate_median, estimate_mean, estimate_process_median, describe_values]


@pytest.mark.parametrize("function", single_set_functions)
@pytest.mark.parametrize("bad", [[1.0, math.nan], [1.0, math.inf], [1.0, -1.0], [], [[1.0, 2.0]]])
def test_values_that_no_clock_gives_are_refused(function, bad):
    with pytest.raises(ValueError, match=r"needed|must"):
        function(bad)


@pytest.mark.parametrize("function", single_set_functions)
@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, math.nan])
def test_a_confidence_outside_0_to_1_is_refused(function, confidence):
    with pytest.raises(ValueError, match="confidence"):
        function([1.0, 2.0], confidence)


def test_zero_is_refused_where_a_logarithm_is_taken():
    with pytest.raises(ValueError, match="greater than zero"):
        estimate_process_median([0.0, 1.0])


@pytest.mark.parametrize(
    ("num", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (30, 10, 21)]
)
def test_the_median_interval_has_the_tabled_ranks(num, low, high):
    # Le Boudec's appendix tables 95 % ranks: n = 10 gives 2 and 9, n = 30 gives 10 and 21.
    estimate = estimate_median(range(1, num + 1), 0.95)
    assert (estimate.low, estimate.high) == (low, high)


def test_five_values_cannot_bound_a_median_and_the_reason_says_how_many_can():
    estimate = estimate_median([1.0, 2.0, 3.0, 4.0, 5.0], 0.95)
    assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)
    assert "at least 6" in estimate.reason
    assert estimate_median([1.0] * 6, 0.95).reason == ""


@given(st.integers(1, 60), st.sampled_from([0.8, 0.9, 0.95, 0.99, 0.999]))
def test_the_number_of_values_asked_for_is_the_least_that_works(num, confidence):
    estimate = estimate_median(range(1, num + 1), confidence)
    exact = 1 - 2 * 0.5**num
    assert (estimate.low is not None) == (exact >= confidence)


def test_the_process_interval_is_students_on_logarithms():
    estimate = estimate_process_median([1.0, math.e, math.e**2], 0.95)
    # The factor is Student's t for 2 degrees of freedom; the logarithms have a standard deviation of 1.
    half = 4.302652729911275 / math.sqrt(3)
    assert estimate.value == pytest.approx(math.e)
    assert estimate.low == pytest.approx(math.exp(1 - half))
    assert estimate.high == pytest.approx(math.exp(1 + half))


def test_one_process_has_a_value_but_no_interval():
    estimate = estimate_process_median([3.0])
    assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)
    assert "at least 2" in estimate.reason
    assert estimate.relative_half_width is None


@given(several_times)
def test_the_process_interval_holds_the_median_it_is_shown_with(values):
    estimate = estimate_process_median(values)
    assert estimate.low <= estimate.value <= estimate.high


def test_the_process_interval_is_stretched_when_skew_would_leave_the_median_outside():
    values = [1.0] * 60 + [3.0] * 40
    logs = np.log(values)
    plain_low = math.exp(logs.mean() - 1.9842169515086827 * logs.std(ddof=1) / 10)
    assert plain_low > 1.0
    assert estimate_process_median(values).low == 1.0


@given(several_times, st.floats(1e-3, 1e3))
def test_intervals_scale_with_the_unit(values, factor):
    for function in (estimate_median, estimate_process_median):
        plain, scaled = function(values), function([v * factor for v in values])
        assert scaled.value == pytest.approx(plain.value * factor)
        assert (scaled.low is None) == (plain.low is None)
        if plain.low is not None:
            assert scaled.low == pytest.approx(plain.low * factor, rel=1e-6)
            assert scaled.high == pytest.approx(plain.high * factor, rel=1e-6)


@given(several_times, st.randoms(use_true_random=False))
def test_the_order_of_values_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    assert estimate_median(shuffled) == estimate_median(values)
    assert estimate_process_median(shuffled).low == pytest.approx(estimate_process_median(values).low, rel=1e-6)
    assert describe_values(shuffled).margin_of_error == pytest.approx(
        describe_values(values).margin_of_error, rel=1e-6, abs=1e-9 * max(values)
    )


@given(times, st.integers(2, 150))
def test_equal_values_have_an_interval_of_no_width(value, num):
    for estimate in (estimate_process_median([value] * num), estimate_mean([value] * num)):
        assert (estimate.value, estimate.low, estimate.high) == (value, value, value)
    described = describe_values([value] * num)
    assert (described.standard_deviation, described.coefficient_of_variation) == (0.0, 0.0)


def test_an_absurd_spread_gives_a_finite_interval():
    assert math.isfinite(estimate_process_median([1e-300, 1e300]).high)


@given(several_times)
def test_more_confidence_never_narrows_an_interval(values):
    intervals = [estimate_process_median(values, confidence) for confidence in (0.5, 0.9, 0.99)]
    for narrow, wide in pairwise(intervals):
        assert wide.low <= narrow.low
        assert wide.high >= narrow.high


@pytest.mark.parametrize("function", [estimate_median, estimate_process_median])
def test_intervals_cover_the_truth_as_often_as_they_say(function):
    random = np.random.default_rng(1)
    hits = 0
    for values in np.exp(0.1 * random.standard_normal((2000, 10))):
        estimate = function(values)
        hits += estimate.low <= 1.0 <= estimate.high
    assert 0.935 <= hits / 2000 <= 0.99


def test_the_99th_percentile_needs_a_hundred_values():
    missing = compute_quantile([1.0] * 99, 0.99)
    assert missing.value is None
    assert "at least 100" in missing.reason
    assert compute_quantile(range(1, 101), 0.99).value == pytest.approx(99.01)


@pytest.mark.parametrize(("q", "needed"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.999, 1000), (0.01, 100)])
def test_a_quantile_needs_one_value_beyond_it(q, needed):
    assert compute_quantile([1.0] * (needed - 1), q).value is None
    assert compute_quantile([1.0] * needed, q).value == 1.0


@pytest.mark.parametrize("q", [0.0, 1.0, 99, math.nan])
def test_a_quantile_outside_0_to_1_is_refused(q):
    with pytest.raises(ValueError, match="q must"):
        compute_quantile([1.0], q)


def test_a_description_holds_the_figures_of_a_worked_example():
    described = describe_values([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert (described.num, described.mean, described.median) == (8, 5.0, 4.5)
    assert (described.minimum, described.maximum) == (2.0, 9.0)
    assert described.standard_deviation == pytest.approx(math.sqrt(32 / 7))
    assert described.coefficient_of_variation == pytest.approx(math.sqrt(32 / 7) / 5)
    assert described.standard_error == pytest.approx(math.sqrt(4 / 7))
    assert described.margin_of_error == pytest.approx(2.364624251592785 * math.sqrt(4 / 7))
    assert described.p99 is None
    assert "0.99 quantile" in described.reason


def test_a_description_of_one_value_says_why_it_has_no_spread():
    described = describe_values([3.0])
    assert described.standard_deviation is None
    assert described.margin_of_error is None
    assert "at least 2" in described.reason


def test_a_mean_of_zero_has_no_coefficient_of_variation_and_says_so():
    described = describe_values([0.0, 0.0])
    assert described.coefficient_of_variation is None
    assert "mean of 0" in described.reason


def test_the_relative_half_width_is_half_the_interval_over_the_value():
    known = Estimate(4.0, 3.0, 6.0, 0.95, "known", 5)
    assert known.relative_half_width == pytest.approx(0.375)
    assert dataclasses.replace(known, value=-4.0).relative_half_width == pytest.approx(0.375)
    for change in ({"low": None}, {"high": None}, {"value": 0.0}):
        assert dataclasses.replace(known, **change).relative_half_width is None
