"""Verdicts on two trials: seldom wrong when nothing differs, seldom blind when something does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from corewise.stats.compare import compare, holm
from corewise.stats.ratio import ratio_of
from corewise.stats.sequential import should_stop

times = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=8)
NUM_PAIRS = 2000
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unknown": "unknown"}


def noisy(random, num, spread=0.015, center=1.0):
    return center * np.exp(spread * random.standard_normal(num))


def at_most_5_percent(num_pairs):
    """The most false verdicts that a true rate of 5 % explains: two standard errors above it."""
    return 0.05 * num_pairs + 2 * math.sqrt(0.05 * 0.95 * num_pairs)


def test_equal_trials_are_called_different_in_at_most_5_percent():
    random = np.random.default_rng(0)
    wrong = 0
    for num_a, num_b in random.integers(5, 11, (NUM_PAIRS, 2)):
        wrong += compare(noisy(random, num_a), noisy(random, num_b)).verdict != "same"
    assert 0.02 * NUM_PAIRS <= wrong <= at_most_5_percent(NUM_PAIRS)


def test_the_true_rate_of_false_verdicts_is_below_5_percent():
    # 4.80 % over two million pairs; 40,000 bring chance down to 0.1 %, so no allowance is made for it.
    random = np.random.default_rng(0)
    sizes = random.integers(5, 11, (40_000, 2))
    p_values = [ratio_of(noisy(random, num_b), noisy(random, num_a)).p_value for num_a, num_b in sizes]
    assert np.mean(np.array(p_values) < 0.05) <= 0.05


def test_a_slowdown_of_5_percent_is_found_in_at_least_95_percent():
    random = np.random.default_rng(1)
    found = [compare(noisy(random, 5), noisy(random, 5, center=1.05)).verdict for _ in range(NUM_PAIRS)]
    assert found.count("slower") >= 0.95 * NUM_PAIRS
    assert found.count("faster") == 0


def stopped_early(random, spread):
    values = noisy(random, 10, spread)
    for num in range(5, 11):
        if should_stop(values[:num], min_runs=5, max_runs=10, target=0.02).stop:
            break
    return values[:num]


def test_trials_that_stopped_on_a_narrow_interval_need_their_looks_counted():
    random = np.random.default_rng(2)
    pairs = [(stopped_early(random, 0.02), stopped_early(random, 0.02)) for _ in range(1000)]
    ignored = sum(compare(a, b).verdict != "same" for a, b in pairs)
    counted = sum(compare(a, b, looks=(5, 10)).verdict != "same" for a, b in pairs)
    assert ignored > 0.06 * 1000
    assert counted <= 0.05 * 1000


def test_drift_between_occasions_makes_false_verdicts_unless_it_is_told():
    random = np.random.default_rng(3)
    ignored = told = 0
    for _ in range(500):
        a, b = (noisy(random, 5, 0.005, center) for center in noisy(random, 2, 0.01))
        ignored += compare(a, b).verdict != "same"
        told += compare(a, b, drift_sd=0.01 * math.sqrt(2)).verdict != "same"
    assert ignored > 0.5 * 500
    assert told <= at_most_5_percent(500)


def test_drift_known_from_few_occasions_counts_for_less():
    a, b = [1.0, 1.001, 0.999], [1.02, 1.021, 1.019]
    sure = compare(a, b, drift_sd=0.005)
    unsure = compare(a, b, drift_sd=0.005, drift_degrees=2)
    assert unsure.interval.high > sure.interval.high


def test_the_main_test_is_welchs_t_on_logarithms():
    a, b = [1.0, 1.1, 1.3, 0.9], [1.4, 1.5, 1.2]
    expected = ttest_ind(np.log(b), np.log(a), equal_var=False)
    found = compare(a, b)
    limits = expected.confidence_interval(0.95)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval.low == pytest.approx(math.exp(limits.low))
    assert found.interval.high == pytest.approx(math.exp(limits.high))


def test_the_ratio_is_the_time_of_b_over_the_time_of_a():
    found = compare([1.0, 1.01, 0.99, 1.0, 1.0], [2.0, 2.02, 1.98, 2.0, 2.0])
    assert found.ratio == pytest.approx(2.0)
    assert found.median_ratio == pytest.approx(2.0)
    assert found.verdict == "slower"
    assert (found.effect_name, found.effect_size) == ("Cliff's delta", 1.0)
    assert found.rank_p_value < 0.05


@given(times, times)
def test_swapping_the_sides_swaps_the_verdict(a, b):
    one, other = compare(a, b, margin=0.01), compare(b, a, margin=0.01)
    assert other.verdict == OPPOSITE[one.verdict]
    assert other.ratio == pytest.approx(1 / one.ratio, rel=1e-6)
    assert other.effect_size == pytest.approx(-one.effect_size)


@given(times, times, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(a, b, factor):
    plain, scaled = compare(a, b), compare([v * factor for v in a], [v * factor for v in b])
    assert scaled.ratio == pytest.approx(plain.ratio, rel=1e-6)
    assert scaled.interval.low == pytest.approx(plain.interval.low, rel=1e-4)


@given(times, times, st.randoms(use_true_random=False))
def test_the_order_of_processes_does_not_matter_to_a_verdict(a, b, random):
    plain, shuffled = compare(a, b), compare(random.sample(a, len(a)), random.sample(b, len(b)))
    assert shuffled.effect_size == pytest.approx(plain.effect_size)
    assert shuffled.ratio == pytest.approx(plain.ratio, rel=1e-9)


@given(st.floats(1e-6, 1e3), st.integers(2, 9), st.integers(2, 9))
def test_sides_of_one_equal_value_are_the_same(value, num_a, num_b):
    found = compare([value] * num_a, [value] * num_b)
    assert (found.verdict, found.ratio, found.p_value, found.effect_size) == ("same", 1.0, 1.0, 0.0)


def test_two_values_that_never_vary_and_differ_are_different():
    found = compare([1.0] * 5, [1.1] * 5)
    assert (found.verdict, found.p_value) == ("slower", 0.0)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], []), ([1.0], [2.0]), ([1.0, 2.0, 3.0], [2.0])])
def test_too_few_values_give_no_verdict_and_say_so(a, b):
    found = compare(a, b)
    assert found.verdict == "unknown"
    assert found.p_value is None
    assert "at least 2" in found.reason


def test_a_difference_below_the_margin_is_no_difference_of_interest():
    a, b = [1.0, 1.001, 0.999, 1.0, 1.0], [1.005, 1.006, 1.004, 1.005, 1.005]
    assert compare(a, b).verdict == "slower"
    assert compare(a, b, margin=0.01).verdict == "same"


def test_with_a_margin_an_interval_too_wide_to_tell_says_so():
    found = compare([1.0, 1.1, 0.9, 1.05], [1.0, 1.08, 0.92, 1.06], margin=0.01)
    assert found.verdict == "unknown"
    assert "too wide to tell" in found.reason
    assert compare([1.0, 1.1, 0.9, 1.05], [1.0, 1.08, 0.92, 1.06]).verdict == "same"


def test_a_rank_test_without_power_gives_no_number():
    found = compare([1.0, 1.01, 0.99], [2.0, 2.01, 1.99])
    assert found.verdict == "slower"
    assert found.rank_p_value is None
    assert "no power" in found.reason


def test_a_verdict_the_rank_test_does_not_share_says_so():
    found = compare([1.0, 1.01, 1.02, 1.03, 1.04, 1.05], [0.99, 1.5, 1.6, 1.7, 1.8, 1.65])
    assert found.verdict == "slower"
    assert found.rank_p_value > 0.05
    assert "does not confirm" in found.reason


def test_many_comparisons_ask_for_more_of_each():
    a, b = [1.0, 1.01, 0.99, 1.0], [1.02, 1.03, 1.01, 1.02]
    assert compare(a, b).verdict == "slower"
    assert compare(a, b, num_comparisons=100).verdict == "same"
    assert compare(a, b, num_comparisons=100).p_value == compare(a, b).p_value


@pytest.mark.parametrize(
    "change",
    [
        {"confidence": 0.0},
        {"margin": -0.1},
        {"margin": math.nan},
        {"num_comparisons": 0},
        {"drift_sd": -0.1},
        {"drift_sd": math.inf},
        {"drift_degrees": 0},
    ],
)
def test_impossible_settings_are_refused(change):
    with pytest.raises(ValueError, match="must"):
        compare([1.0, 2.0], [1.0, 2.0], **change)


@pytest.mark.parametrize("bad", [[1.0, math.nan], [1.0, math.inf], [1.0, -1.0], [1.0, 0.0]])
def test_times_that_no_clock_gives_are_refused_on_either_side(bad):
    with pytest.raises(ValueError, match="must"):
        compare(bad, [1.0, 2.0])
    with pytest.raises(ValueError, match="must"):
        compare([1.0, 2.0], bad)


def test_holm_gives_the_textbook_adjustment_in_the_order_given():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()
    assert holm([0.6, 0.9]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(p_values):
    adjusted = holm(p_values)
    ranked = sorted(zip(p_values, adjusted, strict=True))
    assert all(raw <= found <= 1 for raw, found in ranked)
    assert [found for _, found in ranked] == sorted(adjusted)


@pytest.mark.parametrize("bad", [[-0.1], [1.1], [math.nan], [[0.5]]])
def test_holm_refuses_what_is_no_probability(bad):
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm(bad)
