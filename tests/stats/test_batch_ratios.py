"""Many ratios at once are the same as one at a time."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.stats.batch_ratios import compute_log_moments, estimate_ratios
from corewise.stats.ratio import estimate_ratio

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=6)


@given(st.lists(st.tuples(rates, rates), min_size=1, max_size=8), st.sampled_from([0.9, 0.95, 0.99]))
def test_each_ratio_is_that_of_one_at_a_time(pairs: list[tuple[list[float], list[float]]], c: float) -> None:
    many = estimate_ratios(compute_log_moments([a for a, _ in pairs]), compute_log_moments([b for _, b in pairs]), c)
    for i, (above, below) in enumerate(pairs):
        one = estimate_ratio(above, below, c).interval
        assert many.value[i] == pytest.approx(one.value, rel=1e-9)
        if one.low is None or one.high is None:
            assert math.isnan(many.low[i])
            assert math.isnan(many.high[i])
        else:
            assert many.low[i] == pytest.approx(one.low, rel=1e-7)
            assert many.high[i] == pytest.approx(one.high, rel=1e-7)


def test_equal_values_have_an_interval_of_no_width() -> None:
    same = estimate_ratios(compute_log_moments([[3.0, 3.0, 3.0]]), compute_log_moments([[2.0, 2.0]]))
    assert same.low[0] == same.high[0] == pytest.approx(1.5)


def test_an_empty_group_gives_no_number_and_leaves_its_neighbours_alone() -> None:
    moments = compute_log_moments([[1.0, 2.0], [], [4.0]])
    assert moments.num.tolist() == [2, 0, 1]
    assert np.isnan(moments.mean).tolist() == [False, True, False]
    assert np.isnan(moments.variance).tolist() == [False, True, True]
    assert moments.mean[2] == pytest.approx(math.log(4.0))


def test_nothing_at_all_gives_nothing() -> None:
    assert compute_log_moments([]).num.size == 0
    assert np.isnan(compute_log_moments([[], []]).mean).all()


def test_one_base_serves_all() -> None:
    moments = compute_log_moments([[1.0, 1.1], [2.0, 2.2], [4.0, 4.4]])
    assert estimate_ratios(moments, moments[np.array([0])]).value == pytest.approx([1.0, 2.0, 4.0])


def test_a_node_without_scipy_gets_the_same_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    above, below = (compute_log_moments([[1.0, 1.1, 1.3], [2.0, 2.0], []]), compute_log_moments([[0.9, 1.0]] * 3))
    with_scipy = estimate_ratios(above, below)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    without = estimate_ratios(above, below)
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(getattr(without, name), getattr(with_scipy, name), rtol=1e-8)
