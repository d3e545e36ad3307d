"""Verdicts on two trials: seldom wrong when nothing differs, seldom blind when something does."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from corewise.stats.estimate import Estimate
from corewise.stats.ratio import estimate_ratio
from corewise.stats.sequential_stopping import should_stop
from corewise.stats.trial_comparison import _decide_verdict, adjust_holm, compare_trials

times = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=8)
NUM_PAIRS = 2000
OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "unknown": "unknown"}


def draw_noisy(random, num, spread=0.015, center=1.0):
    return center * np.exp(spread * random.standard_normal(num))


def compute_verdict_limit(num_pairs):
    """The most false verdicts that a true rate of 5 % explains: two standard errors above it."""
    return 0.05 * num_pairs + 2 * math.sqrt(0.05 * 0.95 * num_pairs)


def test_equal_trials_are_called_different_in_at_most_5_percent():
    random = np.random.default_rng(0)
    wrong = 0
    for num_a, num_b in random.integers(5, 11, (NUM_PAIRS, 2)):
        wrong += compare_trials(draw_noisy(random, num_a), draw_noisy(random, num_b)).verdict != "same"
    assert 0.02 * NUM_PAIRS <= wrong <= compute_verdict_limit(NUM_PAIRS)


def test_the_true_rate_of_false_verdicts_is_below_5_percent():
    # 4.80 % over two million pairs; 40,000 bring chance down to 0.1 %, so no allowance is made for it.
    random = np.random.default_rng(0)
    sizes = random.integers(5, 11, (40_000, 2))
    p_values = [estimate_ratio(draw_noisy(random, num_b), draw_noisy(random, num_a)).p_value for num_a, num_b in sizes]
    assert np.mean(np.array(p_values) < 0.05) <= 0.05


def test_a_slowdown_of_5_percent_is_found_in_at_least_95_percent():
    random = np.random.default_rng(1)
    result = [
        compare_trials(draw_noisy(random, 5), draw_noisy(random, 5, center=1.05)).verdict for _ in range(NUM_PAIRS)
    ]
    assert result.count("slower") >= 0.95 * NUM_PAIRS
    assert result.count("faster") == 0


def stop_early(random, spread):
    values = draw_noisy(random, 10, spread)
    for num in range(5, 11):
        if should_stop(values[:num], min_runs=5, max_runs=10, target=0.02).stop:
            break
    return values[:num]


def test_trials_that_stopped_on_a_narrow_interval_need_their_looks_counted():
    random = np.random.default_rng(2)
    pairs = [(stop_early(random, 0.02), stop_early(random, 0.02)) for _ in range(1000)]
    ignored = sum(compare_trials(a, b).verdict != "same" for a, b in pairs)
    counted = sum(compare_trials(a, b, looks=(5, 10)).verdict != "same" for a, b in pairs)
    assert ignored > 0.06 * 1000
    assert counted <= 0.05 * 1000


def test_drift_between_occasions_makes_false_verdicts_unless_it_is_reported():
    random = np.random.default_rng(3)
    ignored = corrected = 0
    for _ in range(500):
        a, b = (draw_noisy(random, 5, 0.005, center) for center in draw_noisy(random, 2, 0.01))
        ignored += compare_trials(a, b).verdict != "same"
        corrected += compare_trials(a, b, drift_sd=0.01 * math.sqrt(2)).verdict != "same"
    assert ignored > 0.5 * 500
    assert corrected <= compute_verdict_limit(500)


def test_drift_known_from_few_occasions_counts_for_less():
    a, b = [1.0, 1.001, 0.999], [1.02, 1.021, 1.019]
    sure = compare_trials(a, b, drift_sd=0.005)
    unsure = compare_trials(a, b, drift_sd=0.005, drift_degrees=2)
    assert unsure.interval.high > sure.interval.high


def test_the_main_test_is_welchs_t_on_logarithms():
    a, b = [1.0, 1.1, 1.3, 0.9], [1.4, 1.5, 1.2]
    expected = ttest_ind(np.log(b), np.log(a), equal_var=False)
    result = compare_trials(a, b)
    limits = expected.confidence_interval(0.95)
    assert result.p_value == pytest.approx(expected.pvalue)
    assert result.interval.low == pytest.approx(math.exp(limits.low))
    assert result.interval.high == pytest.approx(math.exp(limits.high))


def test_the_ratio_is_the_time_of_b_over_the_time_of_a():
    result = compare_trials([1.0, 1.01, 0.99, 1.0, 1.0], [2.0, 2.02, 1.98, 2.0, 2.0])
    assert result.ratio == pytest.approx(2.0)
    assert result.median_ratio == pytest.approx(2.0)
    assert result.verdict == "slower"
    assert (result.effect_name, result.effect_size) == ("Cliff's delta", 1.0)
    assert result.rank_p_value < 0.05


@given(times, times)
def test_swapping_the_sides_swaps_the_verdict(a, b):
    one, other = compare_trials(a, b, margin=0.01), compare_trials(b, a, margin=0.01)
    assert other.verdict == OPPOSITE[one.verdict]
    assert other.ratio == pytest.approx(1 / one.ratio, rel=1e-6)
    assert other.effect_size == pytest.approx(-one.effect_size)


@given(times, times, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(a, b, factor):
    plain, scaled = compare_trials(a, b), compare_trials([v * factor for v in a], [v * factor for v in b])
    assert scaled.ratio == pytest.approx(plain.ratio, rel=1e-6)
    assert scaled.interval.low == pytest.approx(plain.interval.low, rel=1e-4)


@given(times, times, st.randoms(use_true_random=False))
def test_the_order_of_processes_does_not_matter_to_a_verdict(a, b, random):
    plain, shuffled = compare_trials(a, b), compare_trials(random.sample(a, len(a)), random.sample(b, len(b)))
    assert shuffled.effect_size == pytest.approx(plain.effect_size)
    assert shuffled.ratio == pytest.approx(plain.ratio, rel=1e-9)


@given(st.floats(1e-6, 1e3), st.integers(2, 9), st.integers(2, 9))
def test_sides_of_one_equal_value_are_the_same(value, num_a, num_b):
    result = compare_trials([value] * num_a, [value] * num_b)
    assert (result.verdict, result.ratio, result.p_value, result.effect_size) == ("same", 1.0, 1.0, 0.0)


def test_two_values_that_never_vary_and_differ_are_different():
    result = compare_trials([1.0] * 5, [1.1] * 5)
    assert (result.verdict, result.p_value) == ("slower", 0.0)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], []), ([1.0], [2.0]), ([1.0, 2.0, 3.0], [2.0])])
def test_too_few_values_give_no_verdict_and_say_so(a, b):
    result = compare_trials(a, b)
    assert result.verdict == "unknown"
    assert result.p_value is None
    assert "at least 2" in result.reason


def test_a_difference_below_the_margin_is_no_difference_of_interest():
    a, b = [1.0, 1.001, 0.999, 1.0, 1.0], [1.005, 1.006, 1.004, 1.005, 1.005]
    assert compare_trials(a, b).verdict == "slower"
    assert compare_trials(a, b, margin=0.01).verdict == "same"


def test_with_a_margin_an_interval_too_wide_to_decide_says_so():
    result = compare_trials([1.0, 1.1, 0.9, 1.05], [1.0, 1.08, 0.92, 1.06], margin=0.01)
    assert result.verdict == "unknown"
    assert "too wide to decide" in result.reason
    assert compare_trials([1.0, 1.1, 0.9, 1.05], [1.0, 1.08, 0.92, 1.06]).verdict == "same"


def test_a_rank_test_without_power_gives_no_number():
    result = compare_trials([1.0, 1.01, 0.99], [2.0, 2.01, 1.99])
    assert result.verdict == "slower"
    assert result.rank_p_value is None
    # Readers of a verdict get no note on a test that was not made.
    assert "rank" not in result.reason


def test_a_verdict_the_rank_test_does_not_share_says_so():
    result = compare_trials([1.0, 1.01, 1.02, 1.03, 1.04, 1.05], [0.99, 1.5, 1.6, 1.7, 1.8, 1.65])
    assert result.verdict == "slower"
    assert result.rank_p_value > 0.05
    assert "does not confirm" in result.reason


def test_many_comparisons_require_more_evidence_for_each():
    a, b = [1.0, 1.01, 0.99, 1.0], [1.02, 1.03, 1.01, 1.02]
    assert compare_trials(a, b).verdict == "slower"
    assert compare_trials(a, b, num_comparisons=100).verdict == "same"
    assert compare_trials(a, b, num_comparisons=100).p_value == compare_trials(a, b).p_value


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
        compare_trials([1.0, 2.0], [1.0, 2.0], **change)


@pytest.mark.parametrize("bad", [[1.0, math.nan], [1.0, math.inf], [1.0, -1.0], [1.0, 0.0]])
def test_times_that_no_clock_gives_are_refused_on_either_side(bad):
    with pytest.raises(ValueError, match="must"):
        compare_trials(bad, [1.0, 2.0])
    with pytest.raises(ValueError, match="must"):
        compare_trials([1.0, 2.0], bad)


def test_holm_gives_the_textbook_adjustment_in_the_order_given():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert adjust_holm([]) == ()
    assert adjust_holm([0.6, 0.9]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(p_values):
    adjusted = adjust_holm(p_values)
    ranked = sorted(zip(p_values, adjusted, strict=True))
    assert all(raw <= result <= 1 for raw, result in ranked)
    assert [result for _, result in ranked] == sorted(adjusted)


@pytest.mark.parametrize("bad", [[-0.1], [1.1], [math.nan], [[0.5]]])
def test_holm_refuses_what_is_no_probability(bad):
    with pytest.raises(ValueError, match="between 0 and 1"):
        adjust_holm(bad)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.99, 1.01, "same"), (0.5, 1.01, "unknown"), (0.99, 1.5, "unknown"), (1.02, 1.04, "same"), (1.06, 1.2, "slower")],
)
def test_trials_are_the_same_only_if_both_ends_of_the_interval_are_within_the_margin(low, high, verdict):
    interval = Estimate((low * high) ** 0.5, low, high, 0.95, "known", 5)
    assert _decide_verdict(interval, 0.05)[0] == verdict
