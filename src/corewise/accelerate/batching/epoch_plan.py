"""The plan of one epoch: which images form which batch, and which rank computes it in which step.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.batch_cutting import Batches, Numbers
from corewise.accelerate.batching.rank_steps import compute_imbalance

# Images whose companions are compared between epochs.
_MAX_COMPARED_IMAGES = 20_000


@dataclass(frozen=True)
class EpochFigures:
    """What an epoch costs.

    Attributes:
        num_batches: of all ranks together.
        informative_pixels: pixels that belong to images.
        padded_pixels: all pixels that are computed.
        peak_pixels: of the largest batch.
        mean_pixels: of a batch.
        step_imbalance: the largest excess of a rank over the mean of its step; 0 for one rank.
        epoch_imbalance: the same over the whole epoch.
        num_resized: batches whose size was changed so that ranks have equally many or similar batches.
        num_oversized: images that exceed `max_pixels` and have their own batch.
        num_alone: batches of one image.
    """

    num_images: int
    num_batches: int
    num_steps: int
    informative_pixels: int
    padded_pixels: int
    peak_pixels: int
    mean_pixels: float
    step_imbalance: float
    epoch_imbalance: float
    num_resized: int
    num_oversized: int
    num_alone: int

    @property
    def padding_share(self) -> float:
        """The share of computed pixels that are padding."""
        return 1.0 - self.informative_pixels / self.padded_pixels


@dataclass(frozen=True)
class EpochPlan:
    """Batches and steps of one epoch; `steps` has one row per step and one column per rank."""

    batches: Batches
    steps: Numbers
    costs: NDArray[np.float64]
    num_resized: int

    def list_batch(self, step: int, rank: int) -> Sequence[int]:
        """Return the numbers of the images of one batch."""
        images: Sequence[int] = self.batches.select(int(self.steps[step, rank])).tolist()
        return images

    def count_step_images(self) -> Numbers:
        """Return the number of images in each step, over all ranks."""
        counts: Numbers = self.batches.counts[self.steps].sum(axis=1)
        return counts

    def compute_figures(self, pixels: Numbers, max_pixels: Optional[int]) -> EpochFigures:
        """Compute the figures of the epoch.

        Args:
            pixels: of each image of the collection, without padding.
            max_pixels: the limit of a batch, if there is one.
        """
        padded, costs = self.batches.padded_pixels, self.costs[self.steps]
        of_ranks = costs.sum(axis=0)[None]
        return EpochFigures(
            num_images=len(self.batches.images),
            num_batches=len(padded),
            num_steps=len(self.steps),
            informative_pixels=int(pixels[self.batches.images].sum()),
            padded_pixels=int(padded.sum()),
            peak_pixels=int(padded.max()),
            mean_pixels=float(padded.mean()),
            step_imbalance=float(compute_imbalance(costs).max()),
            epoch_imbalance=float(compute_imbalance(of_ranks)[0]),
            num_resized=self.num_resized,
            num_oversized=int(np.count_nonzero(padded > max_pixels)) if max_pixels else 0,
            num_alone=int(np.count_nonzero(self.batches.counts == 1)),
        )

    def find_batch_of_images(self) -> Numbers:
        """Return the batch of each image of the collection."""
        found = np.empty(int(self.batches.images.max()) + 1, dtype=np.int64)
        found[self.batches.images] = np.repeat(np.arange(len(self.batches.starts)), self.batches.counts)
        return found


def estimate_companions(plans: Sequence[EpochPlan], rng: np.random.Generator) -> float:
    """Estimate the effective number of companions of an image from the plans of different epochs.

    Let p(j | i) be the probability that a random companion of image i, in a random epoch, is image j. The collision
    probability is the mean over i of the sum of p(j | i)². Its inverse is the effective number of companions, and
    its logarithm the collision entropy (Rényi, 1961) of the batch composition. Two epochs give an unbiased estimate of
    the collision probability: the share of an image's companions in one epoch that are its companions in the other.
    Uniformly random batches reach the number of other images; batches with fixed members reach their size less one. An
    image that is alone counts as its own only companion.

    Returns:
        The effective number; infinity if no companion was met twice.
    """
    of_images = [plan.find_batch_of_images() for plan in plans]
    num_images = len(of_images[0])
    chosen = np.arange(num_images)
    if num_images > _MAX_COMPARED_IMAGES:
        chosen = rng.choice(num_images, _MAX_COMPARED_IMAGES, replace=False)
    shares = []
    for first in range(len(plans)):
        for second in range(len(plans)):
            if first != second:
                shares.append(_compute_repeated_share(plans[first], of_images[second], chosen, of_images[first]))
    mean = float(np.mean(shares)) if shares else 0.0
    return 1.0 / mean if mean > 0 else float("inf")


def _compute_repeated_share(plan: EpochPlan, other: Numbers, chosen: Numbers, own: Numbers) -> float:
    """Return the mean over images of |common companions| / (companions in one epoch × in the other)."""
    counts, starts = plan.batches.counts, plan.batches.starts
    batch_of = own[chosen]
    lengths = counts[batch_of]
    places = np.repeat(starts[batch_of] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    mates = plan.batches.images[places]
    owners = np.repeat(np.arange(len(chosen)), lengths)
    is_common = (other[mates] == other[chosen][owners]) & (mates != chosen[owners])
    common = np.bincount(owners[is_common], minlength=len(chosen)).astype(np.float64)
    other_counts = np.bincount(other, minlength=int(other.max()) + 1)[other[chosen]]
    alone_in_both = (lengths == 1) & (other_counts == 1)
    common[alone_in_both] = 1.0
    return float(np.mean(common / (np.maximum(lengths - 1, 1) * np.maximum(other_counts - 1, 1))))
