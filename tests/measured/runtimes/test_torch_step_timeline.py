"""The split of a step's time, computed from stored times."""

import pytest

pytest.importorskip("torch")

from corewise.measured.runtimes.torch.modules.step_timeline import (
    StepTimeline,
    StepTimes,
    measure_union,
    summarize_local_steps,
    summarize_shared_steps,
)


def step(tail_s: float, *, sync_s: float = 0.0) -> StepTimes:
    return StepTimes(total_s=1.0, input_s=0.1, sync_s=sync_s, tail_s=tail_s, reduction_s=0.4)


@pytest.mark.parametrize(
    ("intervals", "length"), [([], 0), ([(0, 1), (2, 4)], 3), ([(0, 3), (1, 2)], 3), ([(2, 5), (0, 3)], 5)]
)
def test_overlapping_reductions_count_once(intervals: list[tuple[float, float]], length: float) -> None:
    assert measure_union(intervals) == length


def test_the_parts_of_a_step_add_up_to_the_step() -> None:
    one = step(0.2, sync_s=0.05)
    assert one.compute_s + one.input_s + one.sync_s + one.tail_s == pytest.approx(one.total_s)
    assert summarize_local_steps([one]) == {"compute_s": pytest.approx(0.65), "input_s": 0.1}


def test_what_a_rank_waits_longer_than_the_last_one_is_imbalance() -> None:
    of_ranks = [[0.30, 0.10, 0.20], [0.10, 0.10, 0.10]]
    early = summarize_shared_steps([step(tail) for tail in of_ranks[0]], 0, lambda own: of_ranks)
    late = summarize_shared_steps([step(tail) for tail in of_ranks[1]], 1, lambda own: of_ranks)
    assert early["exposed_communication_s"] == late["exposed_communication_s"] == pytest.approx(0.1)
    assert early["imbalance_s"] == pytest.approx(0.1)
    assert late["imbalance_s"] == 0


def test_buffers_sent_before_the_forward_pass_are_exposed_communication() -> None:
    steps = [step(0.1, sync_s=0.05)]
    metrics = summarize_shared_steps(steps, 0, lambda own: [own])
    assert metrics["exposed_communication_s"] == pytest.approx(0.15)
    assert metrics["communication_s"] == pytest.approx(0.45)


def test_a_step_without_buckets_has_no_communication() -> None:
    timeline = StepTimeline()
    for _ in range(3):
        timeline.begin_step()
        timeline.mark_input()
        timeline.mark_backward()
        timeline.end_step()
    steps = timeline.take_last(2)
    assert len(steps) == 2
    assert all(each.tail_s == each.sync_s == each.reduction_s == 0 for each in steps)


def test_without_steps_there_are_no_figures() -> None:
    assert summarize_local_steps([]) == summarize_shared_steps([], 0, lambda own: [own]) == {}
