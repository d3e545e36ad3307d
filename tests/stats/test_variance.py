"""Noise between and within processes, and what it says about the number of steps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.stats.drift import estimate_drift
from corewise.stats.variance import Components, estimate_variance_components, suggest_repetitions

group = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8)
groups = st.lists(group, min_size=2, max_size=6)


def test_a_worked_example_gives_the_textbook_components():
    # Means 2 and 6, grand mean 4: mean squares 16 between (1 degree) and 1 within (2 + 2 degrees), size 3.
    parts = estimate_variance_components([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    assert parts.mean == pytest.approx(4.0)
    assert parts.within == pytest.approx(1.0)
    assert parts.between == pytest.approx((24.0 - 1.0) / 3)
    assert parts.between_share == pytest.approx((23 / 3) / (23 / 3 + 1))


def test_unequal_groups_recover_planted_variances():
    random = np.random.default_rng(2)
    estimates = []
    for _ in range(300):
        sizes = random.integers(3, 20, 12)
        estimates.append(
            estimate_variance_components(
                [10 + 0.3 * random.standard_normal() + 0.5 * random.standard_normal(n) for n in sizes]
            )
        )
    assert np.mean([parts.between for parts in estimates]) == pytest.approx(0.09, rel=0.1)
    assert np.mean([parts.within for parts in estimates]) == pytest.approx(0.25, rel=0.05)


def test_a_negative_estimate_is_cut_to_zero():
    parts = estimate_variance_components([[1.0, 3.0], [1.0, 3.0], [3.0, 1.0]])
    assert parts.between == 0.0
    assert parts.between_share == 0.0


def test_one_process_has_variance_within_but_none_between():
    parts = estimate_variance_components([[1.0, 2.0, 3.0]])
    assert (parts.within, parts.between, parts.between_share) == (1.0, None, None)
    assert "at least 2" in parts.reason


def test_one_value_per_process_cannot_separate_the_two():
    parts = estimate_variance_components([[1.0], [2.0]])
    assert (parts.within, parts.between) == (None, None)
    assert "cannot be separated" in parts.reason


@pytest.mark.parametrize("bad", [[], [[]], [[1.0, math.nan]], [[1.0, -1.0]], [[1.0], []]])
def test_groups_that_no_clock_gives_are_refused(bad):
    with pytest.raises(ValueError, match=r"needed|must"):
        estimate_variance_components(bad)


@given(groups, st.floats(1e-3, 1e3))
def test_components_scale_with_the_square_of_the_unit(values, factor):
    plain = estimate_variance_components(values)
    scaled = estimate_variance_components([[v * factor for v in one] for one in values])
    tiny = 1e-9 * max(max(one) for one in values) ** 2
    assert scaled.within == pytest.approx(plain.within * factor**2, rel=1e-6, abs=tiny * factor**2)
    assert scaled.between == pytest.approx(plain.between * factor**2, rel=1e-6, abs=tiny * factor**2)


@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_processes_does_not_matter(values, random):
    plain, shuffled = (
        estimate_variance_components(values),
        estimate_variance_components(random.sample(values, len(values))),
    )
    tiny = 1e-9 * max(max(one) for one in values) ** 2
    assert shuffled.within == pytest.approx(plain.within, rel=1e-6, abs=tiny)
    assert shuffled.between == pytest.approx(plain.between, rel=1e-6, abs=tiny)


@given(st.floats(1e-9, 1e6), st.integers(2, 6), st.integers(2, 6))
def test_equal_values_have_no_variance_at_all(value, num_groups, size):
    parts = estimate_variance_components([[value] * size] * num_groups)
    assert (parts.mean, parts.within, parts.between) == (value, 0.0, 0.0)


def test_costly_starts_and_noisy_steps_call_for_more_steps_per_process():
    parts = Components(mean=1.0, between=0.01, within=0.04, num_groups=5, num_values=50)
    # The result is sqrt(9 * 4).
    assert suggest_repetitions(parts, step_s=0.1, start_s=0.9).num == 6
    assert suggest_repetitions(parts, step_s=0.1, start_s=90.0).num == 60
    assert suggest_repetitions(parts, step_s=1.0, start_s=0.0).num == 1


def test_no_finite_number_of_steps_is_named_when_processes_do_not_differ():
    parts = Components(mean=1.0, between=0.0, within=0.04, num_groups=5, num_values=50)
    advice = suggest_repetitions(parts, step_s=0.1, start_s=1.0)
    assert advice.num is None
    assert "no variance between processes" in advice.reason


def test_one_step_is_enough_when_steps_do_not_vary():
    parts = Components(mean=1.0, between=0.01, within=0.0, num_groups=5, num_values=50)
    assert suggest_repetitions(parts, step_s=0.1, start_s=1.0).num == 1


def test_advice_passes_on_the_reason_why_components_are_missing():
    advice = suggest_repetitions(estimate_variance_components([[1.0, 2.0]]), step_s=0.1, start_s=1.0)
    assert advice.num is None
    assert "at least 2" in advice.reason


@pytest.mark.parametrize(("step_s", "start_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_costs_that_no_clock_gives_are_refused(step_s, start_s):
    parts = Components(mean=1.0, between=0.01, within=0.04, num_groups=5, num_values=50)
    with pytest.raises(ValueError, match="costs must"):
        suggest_repetitions(parts, step_s=step_s, start_s=start_s)


def test_drift_between_occasions_is_recovered():
    random = np.random.default_rng(3)
    occasions = [np.exp(0.02 * random.standard_normal() + 0.005 * random.standard_normal(5)) for _ in range(200)]
    drift = estimate_drift(occasions)
    assert drift.sd == pytest.approx(0.02 * math.sqrt(2), rel=0.15)
    assert (drift.degrees, drift.num_occasions) == (199.0, 200)


@pytest.mark.parametrize(
    ("occasions", "expected"), [([[1.0, 2.0]], "at least 2"), ([[1.0], [2.0]], "cannot be separated")]
)
def test_too_few_occasions_or_values_show_no_drift_and_say_so(occasions, expected):
    drift = estimate_drift(occasions)
    assert drift.sd is None
    assert expected in drift.reason


@pytest.mark.parametrize(("between", "within", "share"), [(0.0, 0.0, 0.0), (3.0, 1.0, 0.75), (None, 1.0, None)])
def test_the_share_between_processes_is_0_where_nothing_varies(between, within, share):
    assert Components(1.0, between, within, num_groups=3, num_values=9).between_share == share


def test_steps_that_cost_nothing_are_refused():
    parts = Components(1.0, 1.0, 4.0, num_groups=3, num_values=9)
    with pytest.raises(ValueError, match="costs"):
        suggest_repetitions(parts, step_s=0.0, start_s=1.0)
