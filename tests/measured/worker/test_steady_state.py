"""Warm-up ends when steps have settled, and not before."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.measured.worker.steady_state import WarmUp, is_steady

TOLERANCE = 0.05


def steps_until_finished(trace, **settings):
    warm_up = WarmUp(**{"min_steps": 3, "max_s": 1e9, "tolerance": TOLERANCE, **settings})
    for step_s in trace:
        warm_up.add(step_s)
        if warm_up.finished:
            break
    return warm_up


def test_equal_steps_are_steady_from_two_windows_on():
    assert not is_steady([0.1] * 9, TOLERANCE)
    assert is_steady([0.1] * 10, TOLERANCE)


def test_no_steps_are_not_steady():
    assert not is_steady([], TOLERANCE)


def test_a_decay_is_not_steady_until_it_has_flattened():
    decay = [0.1 * (1 + 4 * 0.8**i) for i in range(100)]
    ended = steps_until_finished(decay)
    assert ended.reason == "steady"
    assert decay[ended.num_steps - 1] < 0.1 * (1 + TOLERANCE)


def test_a_slow_decay_within_the_tolerance_of_neighbouring_windows_is_still_a_trend():
    creeping = [0.1 * 0.993**i for i in range(10)]
    early, late = creeping[2], creeping[7]
    assert (early - late) / early < TOLERANCE
    assert not is_steady(creeping, TOLERANCE)


def test_a_rise_within_the_tolerance_is_no_warm_up():
    assert is_steady([0.1 * 1.001**i for i in range(10)], TOLERANCE)


def test_a_step_change_is_not_steady_until_a_window_lies_behind_it():
    before, after = [0.2] * 10, [0.1] * 10
    assert not is_steady(before + after[:5], TOLERANCE)
    assert is_steady(before + after, TOLERANCE)


@pytest.mark.parametrize("where", range(10))
def test_one_outlier_anywhere_is_forgiven(where):
    trace = [0.1] * 10
    trace[where] = 5.0
    assert is_steady(trace, TOLERANCE)


def test_noise_settles_soon():
    noise = random.Random(1)
    for _ in range(50):
        ended = steps_until_finished([0.1 * noise.lognormvariate(0, 0.05) for _ in range(100)])
        assert ended.reason == "steady"


def test_slow_steps_need_only_two_windows_of_two():
    assert not is_steady([2.0] * 3, TOLERANCE)
    assert is_steady([2.0] * 4, TOLERANCE)
    assert not is_steady([0.9] * 4, TOLERANCE)


def test_slow_steps_that_still_fall_are_not_steady():
    assert not is_steady([2.06, 2.04, 2.02, 2.0], TOLERANCE)
    assert is_steady([2.02, 2.04, 2.0, 2.01], TOLERANCE)


@pytest.mark.parametrize("where", [1, 2, 3])
def test_one_outlier_among_slow_steps_is_forgiven(where):
    trace = [2.0] * 4
    trace[where] = 9.0
    assert is_steady(trace, TOLERANCE)


def test_a_slow_first_step_is_left_behind():
    assert steps_until_finished([30.0] + [2.0] * 10).num_steps <= 6


@given(st.lists(st.floats(1e-6, 1e-3), max_size=30), st.sampled_from([2.0, 4.0, 0.5]))
def test_the_unit_of_quick_steps_does_not_matter(trace, factor):
    assert is_steady(trace, TOLERANCE) == is_steady([v * factor for v in trace], TOLERANCE)


def test_an_unsteady_trace_ends_at_the_time_limit():
    ended = steps_until_finished([0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5] * 20, max_s=0.7)
    assert (ended.finished, ended.reason) == (True, "time limit")
    assert ended.total_s >= 0.7


def test_the_least_number_of_steps_is_taken_even_beyond_the_time_limit():
    ended = steps_until_finished([100.0, 50.0, 10.0, 9.0], max_s=30.0)
    assert (ended.num_steps, ended.reason) == (3, "time limit")


def test_more_steps_than_two_windows_may_be_asked_for():
    assert steps_until_finished([0.1] * 50, min_steps=20).num_steps == 20


def test_a_warm_up_has_no_reason_until_it_ends_and_then_keeps_it():
    warm_up = WarmUp(3, 10.0, TOLERANCE)
    assert (warm_up.finished, warm_up.reason) == (False, "")
    for step_s in [0.1] * 10:
        warm_up.add(step_s)
    assert warm_up.reason == "steady"
    warm_up.add(100.0)
    assert warm_up.reason == "steady"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_step_times_that_no_clock_gives_are_refused(bad):
    with pytest.raises(ValueError, match="step's time"):
        is_steady([0.1] * 9 + [bad], TOLERANCE)
    with pytest.raises(ValueError, match="step's time"):
        WarmUp(3, 1.0, TOLERANCE).add(bad)


def test_steps_too_short_for_the_clock_are_steady():
    assert is_steady([0.0] * 10, TOLERANCE)


@pytest.mark.parametrize(
    "settings", [{"tolerance": -1.0}, {"tolerance": math.nan}, {"min_steps": -1}, {"max_s": math.nan}, {"window": 1}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match=r"must|at least"):
        WarmUp(**{"min_steps": 3, "max_s": 1.0, "tolerance": TOLERANCE, **settings})
