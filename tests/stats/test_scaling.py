"""Efficiency curves: always against a named base, with intervals that hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.stats.scaling import compute_efficiency_curve

rates = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=6)


def test_efficiency_is_the_rate_over_width_times_the_base_rate():
    # AlexNet on Skylake, synthetic images, as published: 1 .80 .66 over 1, 2 and 4 nodes.
    points = {4: [264.0, 264.0], 1: [100.0, 100.0], 2: [160.0, 160.0]}
    curve = compute_efficiency_curve(points)
    assert [point.width for point in curve] == [1, 2, 4]
    assert [point.efficiency.value for point in curve] == pytest.approx([1.0, 0.80, 0.66])
    assert [point.speedup.value for point in curve] == pytest.approx([1.0, 1.6, 2.64])
    assert all(point.base == 1 for point in curve)


def test_times_of_a_fixed_amount_of_work_give_the_same_curve_as_rates():
    points = {1: [10.0, 11.0, 9.0], 4: [30.0, 33.0, 27.0]}
    times = {width: [1 / rate for rate in values] for width, values in points.items()}
    by_rate, by_time = compute_efficiency_curve(points), compute_efficiency_curve(times, quantity="time")
    assert by_time[1].efficiency.value == pytest.approx(by_rate[1].efficiency.value)
    assert by_time[1].efficiency.low == pytest.approx(by_rate[1].efficiency.low)


def test_a_missing_base_gives_reasons_and_no_numbers():
    curve = compute_efficiency_curve({2: [1.0, 1.0], 4: [2.0, 2.0]})
    assert all(point.speedup is None and point.efficiency is None for point in curve)
    assert all("base width 1" in point.reason for point in curve)


def test_another_base_may_be_named_and_its_own_point_is_1():
    curve = compute_efficiency_curve({2: [1.0, 1.1], 8: [2.0, 2.1]}, base=2)
    assert (curve[0].efficiency.value, curve[0].efficiency.low) == (1.0, 1.0)
    assert curve[1].efficiency.value == pytest.approx(curve[1].speedup.value / 4)
    assert curve[1].base == 2


def test_a_width_without_values_is_named_and_spoils_no_other():
    curve = compute_efficiency_curve({1: [1.0, 1.0], 2: [], 4: [4.0, 4.0]})
    assert curve[1].efficiency is None
    assert "width 2" in curve[1].reason
    assert curve[2].efficiency.value == pytest.approx(1.0)


def test_a_width_of_one_value_has_no_interval_and_says_so():
    point = compute_efficiency_curve({1: [1.0, 1.1], 2: [1.9]})[1]
    assert point.efficiency.low is None
    assert point.efficiency.value == pytest.approx(1.9 / math.sqrt(1.1) / 2)
    assert "at least 2" in point.reason


def test_the_interval_covers_the_true_efficiency_as_often_as_it_says():
    random = np.random.default_rng(6)
    hits = 0
    for _ in range(1000):
        noise = np.exp(0.03 * random.standard_normal((2, 5)))
        efficiency = compute_efficiency_curve({1: 100 * noise[0], 8: 600 * noise[1]})[1].efficiency
        hits += efficiency.low <= 0.75 <= efficiency.high
    assert hits / 1000 >= 0.935


@given(rates, rates, st.floats(1e-3, 1e3))
def test_the_unit_of_the_rate_does_not_matter(one, four, factor):
    plain = compute_efficiency_curve({1: one, 4: four})[1].efficiency
    scaled = compute_efficiency_curve({1: [v * factor for v in one], 4: [v * factor for v in four]})[1].efficiency
    assert scaled.value == pytest.approx(plain.value, rel=1e-6)


@pytest.mark.parametrize("points", [{0: [1.0]}, {-1: [1.0]}, {1: [1.0], 2: [math.nan]}, {1: [-1.0], 2: [1.0]}])
def test_impossible_points_are_refused(points):
    with pytest.raises(ValueError, match="must"):
        compute_efficiency_curve(points)


def test_an_unknown_quantity_is_refused():
    with pytest.raises(ValueError, match="'rate' or 'time'"):
        compute_efficiency_curve({1: [1.0]}, quantity="speed")
