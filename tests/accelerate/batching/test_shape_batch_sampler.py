"""Batches of similar shapes: nothing is lost or repeated, limits hold, ranks are even, positions are restored."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.accelerate.batching.collection_sizes import draw_collection_sizes, scale_short_side
from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.shape_batch_sampler import POLICIES, ShapeBatchSampler

SIZES = draw_collection_sizes(4000, seed=3)
MID = scale_short_side(SIZES)
each_policy = pytest.mark.parametrize("policy", POLICIES)


def make(sizes: Any, policy: str, batch: int = 8, **options: Any) -> ShapeBatchSampler:
    if policy in ("budget", "pack"):
        options.setdefault("max_pixels", int(batch * np.prod(np.asarray(sizes), axis=1).mean()))
    else:
        options.setdefault("batch_size", batch)
    return ShapeBatchSampler(sizes, policy=policy, **options)


def list_ranks(sizes: Any, policy: str, world_size: int, **options: Any) -> list[list[list[int]]]:
    return [list(make(sizes, policy, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]


@settings(max_examples=40)
@given(
    sides=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1, max_size=60),
    policy=st.sampled_from(POLICIES),
    world_size=st.integers(1, 5),
    batch=st.integers(1, 9),
    epoch=st.integers(0, 3),
)
def test_every_image_appears_exactly_once_and_ranks_get_equally_many_batches(
    sides: list[tuple[int, int]], policy: str, world_size: int, batch: int, epoch: int
) -> None:
    samplers = [make(sides, policy, batch, rank=rank, world_size=world_size) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    try:
        ranks = [list(sampler) for sampler in samplers]
    except BatchingError as problem:
        # The only refusal: no division into equal numbers of batches exists within the limits.
        if world_size == 1 or "ranks" not in str(problem):
            raise
        return
    assert sorted(image for rank in ranks for images in rank for image in images) == list(range(len(sides)))
    assert {len(rank) for rank in ranks} == {len(samplers[0])}
    assert all(images for rank in ranks for images in rank)


@each_policy
def test_limits_hold(policy: str) -> None:
    sampler = make(MID, policy)
    limit = int(8 * np.prod(MID, axis=1).mean())
    for images in sampler:
        if policy == "budget":
            assert len(images) * MID[images].max(axis=0).prod() <= limit
        elif policy != "pack":
            assert len(images) <= 8
    if policy in ("budget", "pack"):
        assert sampler.compute_figures().peak_pixels <= limit


@pytest.mark.parametrize(("sizes", "batch", "gain"), [(MID, 32, 3.0), (SIZES, 4, 1.5)], ids=["mid", "high"])
def test_similar_shapes_pad_little_within_the_memory_of_random_batches(sizes: Any, batch: int, gain: float) -> None:
    random = make(sizes, "random", batch).compute_figures()
    bucket = make(sizes, "bucket", batch, max_pixels=random.peak_pixels)
    figures = bucket.compute_figures()
    assert figures.padding_share <= 0.10
    assert figures.peak_pixels <= random.peak_pixels
    assert (1 - figures.padding_share) / (1 - random.padding_share) >= gain
    fixed = make(sizes, "sorted", batch)
    assert (1 - figures.padding_share) >= 0.97 * (1 - fixed.compute_figures().padding_share)
    assert bucket.estimate_companions() > 3 * fixed.estimate_companions()


def test_equal_areas_of_different_shapes_are_separated() -> None:
    sizes = [(100, 400), (400, 100), (200, 200)] * 40
    assert make(sizes, "bucket", 8).compute_figures().padding_share < 0.1


@each_policy
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_have_similar_work(policy: str, world_size: int) -> None:
    figures = make(MID, policy, 16, world_size=world_size).compute_figures()
    if policy != "random":
        # A few large images fill a budget alone, and no neighbour balances them.
        assert figures.step_imbalance <= (0.20 if policy == "budget" else 0.10)
    assert figures.epoch_imbalance <= 0.03


def test_a_remainder_makes_smaller_batches_and_is_reported() -> None:
    sizes = [(10, 10)] * 101
    figures = make(sizes, "bucket", 4, world_size=4).compute_figures()
    assert figures.num_batches % 4 == 0
    assert figures.num_resized > 0
    assert figures.num_images == 101


@each_policy
def test_the_seed_and_the_epoch_decide_the_batches(policy: str) -> None:
    first, again, other = make(MID, policy), make(MID, policy), make(MID, policy, seed=1)
    assert list(first) == list(again)
    assert list(first) != list(other)
    again.set_epoch(1)
    assert list(first) != list(again)
    again.set_epoch(0)
    assert list(first) == list(again)


@each_policy
def test_a_restored_sampler_yields_the_rest_of_the_epoch(policy: str) -> None:
    sampler = make(MID, policy, world_size=2)
    sampler.set_epoch(3)
    expected = list(sampler)
    iterator = iter(sampler)
    for _ in range(5):
        next(iterator)
    state = sampler.state_dict()
    restored = make(MID, policy, world_size=2)
    restored.load_state_dict(state)
    assert list(restored) == expected[5:]
    assert list(restored) == expected
    restored.load_state_dict(sampler.state_dict(num_batches=2))
    restored.set_epoch(3)
    assert list(restored) == expected[2:]


def test_a_position_of_another_collection_is_refused() -> None:
    state = make(MID, "bucket").state_dict()
    with pytest.raises(BatchingError, match="belongs to other sizes"):
        make(MID[:-1], "bucket").load_state_dict(state)


def test_a_position_after_the_epoch_yields_nothing_and_the_next_epoch_is_whole() -> None:
    sampler = make(MID, "bucket")
    list(sampler)
    sampler.load_state_dict(sampler.state_dict(len(sampler)))
    assert list(sampler) == []
    assert len(list(sampler)) == len(sampler)


def test_batch_compositions_of_random_batches_have_nearly_all_companions() -> None:
    sizes = [(10, 10)] * 200
    assert make(sizes, "random").estimate_companions(8) == pytest.approx(199, rel=0.2)
    assert make(sizes, "sorted").estimate_companions() == pytest.approx(7)


def test_an_image_larger_than_the_budget_gets_its_own_batch_or_is_refused() -> None:
    sizes = [(10, 10)] * 20 + [(100, 100)]
    sampler = make(sizes, "budget", max_pixels=500)
    assert [20] in list(sampler)
    assert sampler.compute_figures().num_oversized == 1
    with pytest.raises(BatchingError, match=r"1 of 21 images exceed max_pixels=500.*number 20"):
        make(sizes, "budget", max_pixels=500, oversized="refuse")


@each_policy
def test_images_of_one_pixel_and_images_all_alike_are_batched(policy: str) -> None:
    for sizes in ([(1, 1)], [(1, 1)] * 50, [(7, 9)] * 50):
        figures = make(sizes, policy).compute_figures()
        assert figures.num_images == len(sizes)
        if policy != "pack":
            assert figures.padding_share == 0


def test_sides_are_rounded_up() -> None:
    sampler = make([(10, 33)] * 8, "bucket", multiple_of=32)
    assert sampler.compute_figures().peak_pixels == 8 * 32 * 64


def test_the_cost_function_decides_the_balance() -> None:
    sampler = make(MID, "bucket", world_size=2, cost=lambda depths, heights, widths: 1.0 + 0 * depths)
    assert sampler.compute_figures().step_imbalance == 0


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ([], {"batch_size": 4}, "sizes is empty"),
        ([(10, 10, 3)], {"batch_size": 4}, r"one \(height, width\) per image"),
        ([(10, 0)], {"batch_size": 4}, r"sizes\[0\] is 10×0"),
        ([(10, 2.5)], {"batch_size": 4}, "no whole numbers"),
        ([(10, float("nan"))], {"batch_size": 4}, "no whole numbers"),
        ([(10, 10)], {}, "batch_size or max_pixels is missing"),
        ([(10, 10)], {"batch_size": 0}, "batch_size=0"),
        ([(10, 10)], {"batch_size": 4, "policy": "budgte"}, "choose one of random, sorted"),
        ([(10, 10)], {"batch_size": 4, "policy": "budget"}, "needs max_pixels"),
        ([(10, 10)], {"batch_size": 4, "rank": 2, "world_size": 2}, "rank=2"),
        ([(10, 10)], {"batch_size": 4, "oversized": "drop"}, "own, refuse"),
        ([(10, 10)], {"batch_size": 4, "tolerance": 1.0}, "tolerance"),
    ],
)
def test_wrong_arguments_are_named(sizes: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BatchingError, match=message):
        ShapeBatchSampler(sizes, **options)


def test_fewer_images_than_ranks_are_refused() -> None:
    sampler = make([(10, 10)] * 3, "bucket", world_size=4)
    with pytest.raises(BatchingError, match="3 images cannot give each of 4 ranks a batch"):
        list(sampler)
