"""Divide batches over ranks: equal numbers of batches, and similar predicted time in each step.

Measured side: standard library and numpy only, Python 3.9.

Batches of similar cost form a step, one for each rank. Where their costs differ too much, the images of the step are
divided again. No image is dropped or repeated: if the number of batches is no multiple of the number of ranks, some
batches become smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.batch_cutting import Batches, BatchLimit, Numbers
from corewise.accelerate.batching.errors import BatchingError

# Steps whose slowest rank exceeds the mean by more than this are divided again.
MAX_STEP_IMBALANCE = 0.08
# Dividing again may cost this share of the epoch, because it mixes shapes.
_MAX_EXTRA_COST = 0.01
# Dividing takes Python loops; a plan with more unbalanced steps keeps the others as they are.
_MAX_DIVIDED_STEPS = 500
_BISECTIONS = 24

Costs = NDArray[np.float64]


@dataclass(frozen=True)
class DivisionRules:
    """What dividing needs to know about a policy.

    Attributes:
        measure: computes the batches of images that are cut at the given starts.
        compute_costs: predicts the time of each batch.
        places: the place of each image in the order of shapes.
    """

    limit: BatchLimit
    measure: Callable[[Numbers, Numbers], Batches]
    compute_costs: Callable[[Batches], Costs]
    places: Numbers


@dataclass(frozen=True)
class DividedBatches:
    """Batches and the steps that hold them: one row per step, one column per rank.

    Attributes:
        num_resized: batches that were made from the images of others.
    """

    batches: Batches
    steps: Numbers
    num_resized: int


def divide_over_ranks(
    batches: Batches, world_size: int, rules: DivisionRules, rng: np.random.Generator
) -> DividedBatches:
    """Divide the batches of an epoch over the ranks.

    Raises:
        BatchingError: the images do not suffice for equal numbers of batches.
    """
    if world_size == 1:
        return DividedBatches(batches, rng.permutation(len(batches.starts))[:, None], 0)
    batches, num_resized = _level_number(batches, world_size, rules)
    costs = rules.compute_costs(batches)
    groups = np.argsort(costs, kind="stable").reshape(-1, world_size)
    imbalance = compute_imbalance(costs[groups])
    unbalanced = np.flatnonzero(imbalance > MAX_STEP_IMBALANCE)
    spare_cost = _MAX_EXTRA_COST * float(costs.sum())
    replaced: List[int] = []
    parts: List[Batches] = []
    for group in unbalanced[np.argsort(-imbalance[unbalanced])][:_MAX_DIVIDED_STEPS].tolist():
        # If the images of a step cannot be balanced, those of the next more expensive step help.
        for joined in ([group], [group, group + 1]):
            if joined[-1] == len(groups) or set(joined) & set(replaced):
                continue
            numbers = groups[joined].reshape(-1)
            divided = _divide_again(batches.take(numbers), costs[numbers], world_size, spare_cost, rules)
            if divided is not None:
                spare_cost -= max(0.0, float(rules.compute_costs(divided).sum() - costs[numbers].sum()))
                replaced += joined
                parts.append(divided)
                break
    if replaced:
        kept = np.delete(groups, replaced, axis=0)
        batches = batches.take(kept.reshape(-1))
        for part in parts:
            batches = batches.append(part)
        groups = np.arange(len(batches.starts)).reshape(-1, world_size)
        num_resized += sum(len(part.starts) for part in parts)
    steps = groups[rng.permutation(len(groups))]
    return DividedBatches(batches, _assign_ranks(steps, rules.compute_costs(batches)), num_resized)


def compute_imbalance(costs: Costs) -> Costs:
    """Return, for each step, by how much the slowest rank exceeds the mean: 0.1 is 10 %."""
    imbalance: Costs = costs.max(axis=1) / np.maximum(costs.mean(axis=1), 1e-300) - 1.0
    return imbalance


def _assign_ranks(steps: Numbers, costs: Costs) -> Numbers:
    """Give the most expensive batch of each step to the rank that has the least to do so far."""
    totals = [0.0] * steps.shape[1]
    by_cost = np.take_along_axis(steps, np.argsort(-costs[steps], axis=1, kind="stable"), axis=1)
    assigned = np.empty_like(steps)
    rows = costs[by_cost].tolist()
    for number, row in enumerate(rows):
        ranks = sorted(range(len(totals)), key=totals.__getitem__)
        assigned[number, ranks] = by_cost[number]
        for rank, cost in zip(ranks, row):
            totals[rank] += cost
    return assigned


def _level_number(batches: Batches, world_size: int, rules: DivisionRules) -> Tuple[Batches, int]:
    """Return batches whose number is a multiple of the number of ranks, and how many were made for it."""
    num_images, num_batches = len(batches.images), len(batches.starts)
    if num_images < world_size:
        raise BatchingError(
            f"{num_images} images cannot give each of {world_size} ranks a batch without repeating images: "
            f"use at most {num_images} ranks, or add images"
        )
    extra = num_batches % world_size
    if extra == 0:
        return batches, 0
    by_cost = np.argsort(rules.compute_costs(batches), kind="stable")
    by_count = np.argsort(-batches.counts, kind="stable")
    # The cheapest batches, or those with the most images, are divided further. If no batch can be, some are joined.
    attempts = [(extra + k * world_size, (k + 1) * world_size) for k in range(3)]
    attempts += [(extra + k * world_size, k * world_size) for k in (1, 2)]
    best: Optional[Tuple[float, Numbers, Batches]] = None
    for (num_taken, num_parts), order in ((attempt, order) for attempt in attempts for order in (by_cost, by_count)):
        if num_taken > num_batches:
            continue
        taken = batches.take(order[:num_taken])
        divided = _partition(taken.images, num_parts, rules)
        if divided is None or not _respects_limit(divided, rules.limit):
            continue
        costs = np.sort(rules.compute_costs(divided)).reshape(-1, world_size)
        imbalance = float(compute_imbalance(costs).max())
        if best is None or imbalance < best[0]:
            best = (imbalance, order[num_taken:], divided)
        if imbalance <= MAX_STEP_IMBALANCE:
            break
    if best is None:
        raise BatchingError(
            f"{num_images} images in {num_batches} batches cannot be divided into equal numbers of batches for "
            f"{world_size} ranks without exceeding max_pixels={rules.limit.max_pixels:,}: "
            "increase max_pixels, or use fewer ranks"
        )
    _, others, divided = best
    return batches.take(others).append(divided), len(divided.starts)


def _respects_limit(batches: Batches, limit: BatchLimit) -> bool:
    too_large = batches.padded_pixels > (limit.max_pixels or np.iinfo(np.int64).max)
    return not bool(np.any(too_large & (batches.counts > 1)))


def _divide_again(
    joined: Batches, costs: Costs, world_size: int, spare_cost: float, rules: DivisionRules
) -> Optional[Batches]:
    """Divide the images of one or two steps again, into as many steps or one more; None if that brings nothing."""
    num_batches = len(joined.starts)
    best, lowest = None, float(compute_imbalance(costs.reshape(-1, world_size)).max())
    for num_parts in (num_batches, num_batches + world_size):
        divided = _partition(joined.images, num_parts, rules)
        if divided is None or not _respects_limit(divided, rules.limit):
            continue
        divided = divided.take(np.argsort(rules.compute_costs(divided), kind="stable"))
        divided_costs = rules.compute_costs(divided)
        imbalance = float(compute_imbalance(divided_costs.reshape(-1, world_size)).max())
        # Memory must not grow either.
        fits = divided.padded_pixels.max() <= max(joined.padded_pixels.max(), rules.limit.max_pixels or 0)
        if imbalance < lowest and fits and divided_costs.sum() - costs.sum() <= spare_cost:
            best, lowest = divided, imbalance
        if lowest <= MAX_STEP_IMBALANCE:
            break
    return best


def _partition(images: Numbers, num_parts: int, rules: DivisionRules) -> Optional[Batches]:
    """Cut images, in the order of shapes, into this many batches whose largest cost is as low as possible."""
    if len(images) < num_parts:
        return None
    in_order = images[np.argsort(rules.places[images], kind="stable")]
    best: Optional[Tuple[float, Batches]] = None
    for direction in (in_order, in_order[::-1]):
        starts = _bisect_cuts(direction, num_parts, rules)
        divided = rules.measure(direction, starts)
        imbalance = float(compute_imbalance(rules.compute_costs(divided)[None])[0])
        if best is None or imbalance < best[0]:
            best = (imbalance, divided)
    return best[1] if best else None


def _bisect_cuts(images: Numbers, num_parts: int, rules: DivisionRules) -> Numbers:
    """Return the starts of `num_parts` runs of images; the largest cost is minimised by bisection."""
    whole = rules.measure(images, np.zeros(1, dtype=np.int64))
    low, high = 0.0, float(rules.compute_costs(whole)[0])
    best: List[int] = []
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        starts = _cut_below(images, middle, num_parts, rules)
        if starts is None:
            low = middle
        else:
            best, high = starts, middle
    return np.array(_fill_up(best or [0], len(images), num_parts), dtype=np.int64)


def _cut_below(images: Numbers, max_cost: float, num_parts: int, rules: DivisionRules) -> Optional[List[int]]:
    """Return starts of at most `num_parts` runs that cost at most `max_cost` each, or None."""
    starts: List[int] = []
    start = 0
    while start < len(images):
        if len(starts) == num_parts:
            return None
        starts.append(start)
        # The cost of a run grows with its length, so its end is found by bisection.
        low, high = start + 1, len(images)
        while low < high:
            middle = (low + high + 1) // 2
            run = rules.measure(images[start:middle], np.zeros(1, dtype=np.int64))
            if rules.compute_costs(run)[0] <= max_cost:
                low = middle
            else:
                high = middle - 1
        if low == start + 1:
            run = rules.measure(images[start:low], np.zeros(1, dtype=np.int64))
            if rules.compute_costs(run)[0] > max_cost:
                return None
        start = low
    return starts


def _fill_up(starts: List[int], num_images: int, num_parts: int) -> List[int]:
    """Halve the longest runs until there are enough."""
    starts = list(starts)
    while len(starts) < num_parts:
        lengths = np.diff([*starts, num_images])
        longest = int(np.argmax(lengths))
        starts.insert(longest + 1, starts[longest] + int(lengths[longest]) // 2)
    return starts
