"""`corewise.batching.ShapeBatchSampler`: batches of images of many sizes, for torch's DataLoader and for others.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.batch_cutting import (
    Batches,
    BatchLimit,
    Numbers,
    check_sizes,
    cut_batches,
    measure_batches,
    round_sides,
)
from corewise.accelerate.batching.canvas_packing import cut_canvases, measure_canvases
from corewise.accelerate.batching.epoch_plan import EpochFigures, EpochPlan, estimate_companions
from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.rank_steps import DivisionRules, divide_over_ranks
from corewise.accelerate.batching.shape_order import choose_extent, order_by_shape, shuffle_in_windows

POLICIES = ("random", "sorted", "bucket", "budget", "pack")
# Policies that need a limit in pixels.
_OF_PIXELS = ("budget", "pack")
OVERSIZED = ("own", "refuse")
# By default, randomness may cost this share of the informative pixels per computed pixel.
DEFAULT_TOLERANCE = 0.02
# Predicts the seconds of batches from their depths, heights and widths; any unit will do.
CostFunction = Callable[[Numbers, Numbers, Numbers], Any]
# Streams of random numbers for separate purposes.
_OF_WINDOWS, _OF_EPOCHS, _OF_COMPANIONS = 1, 2, 3


class ShapeBatchSampler:
    """Batches of similarly shaped images, for `DataLoader(batch_sampler=…)`.

    Every image appears exactly once per epoch. All ranks get equally many batches, and batches of one step have similar
    predicted times. The same arguments and epoch give the same batches, on any machine and with any number of workers.

    Args:
        sizes: one (height, width) per image of the dataset, in its order.
        policy: `random` batches; `sorted` by shape, always the same batches in random order; `bucket`: random batches
            of similar shapes; `budget`: the same with a number of pixels per batch, so that memory is even; `pack`:
            several images on one canvas, for models that allow it.
        batch_size: the most images in a batch.
        max_pixels: the most pixels in a batch, padding included. `budget` and `pack` need it.
        seed: decides all that is random, together with the epoch.
        rank, world_size: this process and the number of processes of data-parallel training.
        tolerance: the share of informative pixels per computed pixel that randomness may cost.
        oversized: what to do with an image larger than `max_pixels`: `own` batch, or `refuse`.
        multiple_of: sides of batches are rounded up to a multiple of it; pass the same to the collate function.
        gap: free pixels between the images on a canvas; pass the same to the collate function.
        cost: predicts the time of batches from arrays of depths, heights and widths; by default their pixels.

    Raises:
        BatchingError: an argument or a size is wrong, or the images do not suffice for the ranks.

    Example:
        >>> sampler = ShapeBatchSampler([(500, 720), (720, 500)] * 100, policy="bucket", batch_size=8)
        >>> loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=PadCollate(), num_workers=2)
        >>> for epoch in range(10):
        ...     sampler.set_epoch(epoch)
        ...     for batch in loader: ...
    """

    def __init__(
        self,
        sizes: Any,
        *,
        policy: str = "bucket",
        batch_size: Optional[int] = None,
        max_pixels: Optional[int] = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        tolerance: float = DEFAULT_TOLERANCE,
        oversized: str = "own",
        multiple_of: int = 1,
        gap: int = 0,
        cost: Optional[CostFunction] = None,
    ) -> None:
        heights, widths = check_sizes(sizes)
        self._limit = BatchLimit(batch_size, max_pixels, multiple_of)
        self._policy, self._seed, self._rank, self._world_size = policy, seed, rank, world_size
        self._tolerance, self._gap, self._cost = tolerance, gap, cost
        self._check_arguments()
        self._pixels = heights * widths
        if oversized not in OVERSIZED:
            raise BatchingError(f"oversized={oversized!r}: choose one of {', '.join(OVERSIZED)}")
        self._heights, self._widths = round_sides(heights, multiple_of), round_sides(widths, multiple_of)
        if oversized == "refuse":
            self._refuse_oversized()
        self._order: Optional[Numbers] = None
        self._extent = 0.0
        self._epoch = self._next_step = 0
        self._planned: Optional[EpochPlan] = None
        self._planned_epoch = -1
        digest = hashlib.sha256(np.stack([heights, widths]).tobytes())
        options = (policy, batch_size, max_pixels, seed, world_size, tolerance, multiple_of, gap)
        self._fingerprint = hashlib.sha256(digest.digest() + repr(options).encode()).hexdigest()[:16]

    def __len__(self) -> int:
        """Return the number of batches of this rank in the current epoch; it is the same for all ranks."""
        return len(self.plan_epoch().steps)

    def __iter__(self) -> Iterator[List[int]]:
        """Yield the batches of this rank, from the restored position on."""
        plan = self.plan_epoch()
        start, self._next_step = self._next_step, 0
        for step in range(start, len(plan.steps)):
            self._next_step = step + 1
            yield list(plan.list_batch(step, self._rank))
        self._next_step = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, whose number decides the batches. Call it before each epoch."""
        if epoch != self._epoch:
            self._epoch, self._next_step = epoch, 0

    def state_dict(self, num_batches: Optional[int] = None) -> Dict[str, Any]:
        """Return the position in the epoch.

        Args:
            num_batches: how many batches of this epoch were trained on. By default, those that were handed out. Pass it
                if the loader has workers, because they fetch batches ahead.
        """
        position = self._next_step if num_batches is None else num_batches
        return {"epoch": self._epoch, "num_batches": position, "fingerprint": self._fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a position: the next iteration yields the rest of that epoch.

        Raises:
            BatchingError: the position belongs to other images, arguments or numbers of ranks.
        """
        if state.get("fingerprint") != self._fingerprint:
            raise BatchingError(
                "the saved position belongs to other sizes or arguments of ShapeBatchSampler: create the sampler as it "
                "was, with the same images, policy, limits, seed and world_size, or begin a new epoch"
            )
        self._epoch, self._next_step = int(state["epoch"]), int(state["num_batches"])

    @property
    def extent(self) -> float:
        """How much the logarithms of height and width may vary among images that are shuffled; set by `tolerance`."""
        self._prepare()
        return self._extent

    def plan_epoch(self, epoch: Optional[int] = None) -> EpochPlan:
        """Return the plan of an epoch, by default the current one."""
        epoch = self._epoch if epoch is None else epoch
        if self._planned is None or epoch != self._planned_epoch:
            self._planned, self._planned_epoch = self._make_plan(epoch), epoch
        return self._planned

    def compute_figures(self, epoch: Optional[int] = None) -> EpochFigures:
        """Compute padding, memory and balance of an epoch, by default the current one."""
        return self.plan_epoch(epoch).compute_figures(self._pixels, self._limit.max_pixels)

    def estimate_companions(self, num_epochs: int = 4) -> float:
        """Estimate the effective number of companions of an image: see `epoch_plan.estimate_companions`."""
        plans = [self._make_plan(epoch) for epoch in range(num_epochs)]
        found = estimate_companions(plans, self._make_rng(_OF_COMPANIONS))
        # Random batches rarely repeat a pair; the number of other images is then the answer.
        return min(found, float(max(1, len(self._pixels) - 1)))

    def _check_arguments(self) -> None:
        if self._policy not in POLICIES:
            raise BatchingError(f"policy={self._policy!r}: choose one of {', '.join(POLICIES)}")
        if self._policy in _OF_PIXELS and self._limit.max_pixels is None:
            raise BatchingError(f"policy={self._policy!r} needs max_pixels, the pixels of a batch with its padding")
        if self._world_size < 1 or not 0 <= self._rank < self._world_size:
            raise BatchingError(
                f"rank={self._rank}, world_size={self._world_size}: rank must be from 0 to world_size-1"
            )
        if not 0 <= self._tolerance < 1:
            raise BatchingError(f"tolerance={self._tolerance}: a share from 0 to below 1 is needed")
        if self._gap < 0:
            raise BatchingError(f"gap={self._gap}: at least 0 pixels are needed")

    def _refuse_oversized(self) -> None:
        limit = self._limit.max_pixels
        if limit is None:
            raise BatchingError("oversized='refuse' needs max_pixels")
        padded = self._heights * self._widths
        found = np.flatnonzero(padded > limit)
        if len(found):
            raise BatchingError(
                f"{len(found)} of {len(padded)} images exceed max_pixels={limit:,}; the first is number {found[0]} "
                f"with {padded[found[0]]:,} pixels. Increase max_pixels, scale the images, or pass oversized='own'"
            )

    def _make_rng(self, purpose: int, number: int = 0) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, number])

    def _prepare(self) -> Numbers:
        """Compute once what does not depend on the epoch, and return the order of shapes."""
        if self._order is None:
            self._order = order_by_shape(self._heights, self._widths, self._limit)
            if self._policy in ("bucket", *_OF_PIXELS):
                rng = self._make_rng(_OF_WINDOWS)
                self._extent = choose_extent(
                    self._order, self._heights, self._widths, self._limit, self._tolerance, rng
                )
        return self._order

    def _arrange_images(self, rng: np.random.Generator) -> Numbers:
        if self._policy == "random":
            return rng.permutation(len(self._pixels))
        order = self._prepare()
        if self._policy == "sorted":
            return order
        return shuffle_in_windows(order, self._heights, self._widths, self._limit, self._extent, rng)

    def _make_plan(self, epoch: int) -> EpochPlan:
        rng = self._make_rng(_OF_EPOCHS, epoch)
        images = self._arrange_images(rng)
        if self._policy == "pack":
            batches = cut_canvases(images, self._heights, self._widths, self._limit, self._gap)
        else:
            batches = cut_batches(images, self._heights, self._widths, self._limit)
        places = np.arange(0)
        if self._world_size > 1:
            places = np.empty(len(images), dtype=np.int64)
            # Random batches stay random when their images are divided again.
            places[images if self._policy == "random" else self._prepare()] = np.arange(len(images))
        rules = DivisionRules(self._limit, self._measure, self._compute_costs, places)
        divided = divide_over_ranks(batches, self._world_size, rules, rng)
        return EpochPlan(divided.batches, divided.steps, self._compute_costs(divided.batches), divided.num_resized)

    def _measure(self, images: Numbers, starts: Numbers) -> Batches:
        if self._policy == "pack":
            return measure_canvases(images, starts, self._heights, self._widths, self._limit, self._gap)
        return measure_batches(images, starts, self._heights, self._widths)

    def _compute_costs(self, batches: Batches) -> NDArray[np.float64]:
        if self._cost is None:
            return batches.padded_pixels.astype(np.float64)
        return np.asarray(self._cost(batches.depths, batches.heights, batches.widths), dtype=np.float64)
