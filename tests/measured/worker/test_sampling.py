"""The timed loop follows its plan."""

import pytest

from corewise.measured.trial import Protocol
from corewise.measured.worker.sampling import SamplingPlan, plan_sampling, take_samples

PROTOCOL = Protocol(min_samples=10, min_sample_s=1.0, max_samples=1000)


def test_slow_steps_are_sampled_the_least_number_of_times() -> None:
    go = plan_sampling(PROTOCOL, [2.0], independent=False)
    assert (go.num_samples, go.steps_per_sample, go.window_s) == (10, 1, 0.0)


def test_steps_of_a_millisecond_are_each_a_sample() -> None:
    go = plan_sampling(PROTOCOL, [0.001], independent=False)
    assert (go.num_samples, go.steps_per_sample) == (1000, 1)


def test_steps_of_microseconds_are_timed_in_groups() -> None:
    go = plan_sampling(PROTOCOL, [1e-5], independent=False)
    assert go.steps_per_sample == 100
    assert go.num_samples == 1000


def test_the_slowest_rank_decides_for_all() -> None:
    assert plan_sampling(PROTOCOL, [0.1, 0.4, 0.2], independent=False).num_samples == 10
    assert plan_sampling(PROTOCOL, [0.1, 0.4, 0.2], independent=True).window_s == pytest.approx(4.0)


def test_ranks_in_step_all_do_the_same_number_of_steps() -> None:
    steps = []
    sampled = take_samples(lambda: steps.append(1), SamplingPlan(0, 7, 3, 0.0))
    assert len(steps) == 21 == sampled.num_steps
    assert len(sampled.samples_s) == 7
    assert sampled.window_steps == 21


def test_a_window_counts_the_part_of_the_last_step_that_lies_within() -> None:
    sampled = take_samples(lambda: sum(range(20000)), SamplingPlan(0, 1, 1, 0.05))
    assert sum(sampled.samples_s) >= 0.05
    assert sampled.num_steps - 1 <= sampled.window_steps <= sampled.num_steps
    assert sampled.window_s == 0.05
    *before, last_s = sampled.samples_s
    assert sampled.window_steps == pytest.approx(len(before) + (0.05 - sum(before)) / last_s)


def test_a_sampling_plan_survives_the_control_pipe() -> None:
    go = SamplingPlan(5, 7, 3, 0.25)
    assert SamplingPlan.from_message(go.to_message()) == go
