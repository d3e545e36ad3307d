"""Student's t and the normal quantile of our own are scipy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import bdtr, ndtri, stdtr, stdtrit

from corewise.stats.estimate import estimate_median
from corewise.stats.quantiles import compute_normal_quantile, compute_t_quantile, compute_t_tail

DEGREES = (1, 1.5, 2, 3, 4, 5.7, 9, 19.3, 50, 98.9, 99, 100, 101, 200, 999, 1e4, 1e6, 1e9)
each_degree = pytest.mark.parametrize("degrees", DEGREES)


@each_degree
def test_a_tail_is_that_of_scipy_down_to_1e_12(degrees: float) -> None:
    t = np.concatenate(([0.0], np.logspace(-4, 13, 500)))
    expected = stdtr(degrees, -t)
    kept = expected > 1e-12
    np.testing.assert_allclose(compute_t_tail(degrees, t[kept]), expected[kept], rtol=1e-9)


@each_degree
def test_a_tail_of_one_number_is_that_of_an_array(degrees: float) -> None:
    t = np.array([0.0, 0.3, 2.0, 7.5])
    np.testing.assert_allclose(
        [compute_t_tail(degrees, float(each)) for each in t], compute_t_tail(degrees, t), rtol=1e-14
    )


@each_degree
def test_a_quantile_is_that_of_scipy(degrees: float) -> None:
    tails = np.concatenate((np.logspace(-12, -0.31, 100), [0.025, 0.005, 0.499]))
    for p in (*tails, *(1 - tails)):
        assert compute_t_quantile(degrees, float(p)) == pytest.approx(float(stdtrit(degrees, p)), rel=1e-9)


@given(st.floats(1.0, 1e9), st.floats(1e-12, 0.499))
def test_a_quantile_leaves_its_tail_beyond_it(degrees: float, tail: float) -> None:
    assert float(compute_t_tail(degrees, -compute_t_quantile(degrees, tail))) == pytest.approx(tail, rel=1e-9)


def test_the_quantiles_with_a_closed_form_are_exact() -> None:
    assert compute_t_quantile(1, 0.75) == pytest.approx(1.0, rel=1e-13)
    assert compute_t_quantile(2, 0.975) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-13)
    assert compute_t_quantile(7, 0.5) == 0.0


@pytest.mark.parametrize(("degrees", "p"), [(0, 0.9), (-1, 0.9), (3, 0.0), (3, 1.0), (3, math.nan)])
def test_what_has_no_quantile_is_refused(degrees: float, p: float) -> None:
    with pytest.raises(ValueError, match="are needed"):
        compute_t_quantile(degrees, p)


@given(st.floats(1e-12, 1 - 1e-12))
def test_the_normal_quantile_is_that_of_scipy(p: float) -> None:
    assert compute_normal_quantile(p) == pytest.approx(float(ndtri(p)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.9375, 0.95, 0.99, 0.999])
def test_the_interval_of_a_median_has_the_ranks_of_the_binomial_law(confidence: float) -> None:
    for num in (*range(1, 60), 500, 3001):
        rank = 0
        while rank < num // 2 and 2 * float(bdtr(rank, num, 0.5)) <= 1 - confidence:
            rank += 1
        estimate = estimate_median(range(num), confidence)
        assert (estimate.low, estimate.high) == ((rank - 1, num - rank) if rank else (None, None))
