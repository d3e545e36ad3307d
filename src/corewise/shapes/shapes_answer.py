"""What `corewise shapes` finds out: the sizes of a collection, what each policy costs, and which one to use."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.collection_sizes import scale_short_side
from corewise.accelerate.batching.epoch_plan import EpochFigures
from corewise.accelerate.batching.image_scan import ScannedFolder
from corewise.accelerate.batching.shape_batch_sampler import POLICIES, ShapeBatchSampler
from corewise.errors import UserError
from corewise.text_format import round_significant

# Training ResNet-18 in float32 takes this much memory per computed megapixel: 25.7 GB for 61.5 megapixels, and the same
# for the other resolutions (Parés et al., 2021, Tables 1 and 2).
RESNET18_GB_PER_MEGAPIXEL = 0.42
# Without a limit from the user, a batch may take this share of the memory.
MEMORY_SHARE = 0.5
# Random batches that pad less than this are good enough.
LITTLE_PADDING = 0.02
# A smaller difference between two shares of padding does not decide.
CLEAR_DIFFERENCE = 0.03
# Up to this ratio of the largest batch to the mean, equal numbers of images keep memory even.
EVEN_MEMORY = 1.5
# Pixels of a `budget` batch over those of its images.
ROOM_FOR_PADDING = 1.1
# Random batches whose largest exceeds the limit are made smaller; this many times at most.
_MAX_SHRINKS = 40


@dataclass(frozen=True)
class ShapesQuestion:
    """What the user asked. Without `batch` and `max_pixels`, the memory of the machine decides.

    Attributes:
        gb_per_megapixel, seconds_per_megapixel: of the user's model; the time is unknown if it is None.
    """

    batch: int | None = None
    max_pixels: int | None = None
    seed: int = 0
    ranks: int = 1
    short_side: int | None = None
    gb_per_megapixel: float = RESNET18_GB_PER_MEGAPIXEL
    seconds_per_megapixel: float | None = None


@dataclass(frozen=True)
class PolicyAnswer:
    """What an epoch with one policy costs."""

    policy: str
    options: Mapping[str, int]
    figures: EpochFigures
    companions: float
    seconds: float | None
    peak_gb: float
    time_over_random: float

    def to_json(self) -> dict[str, Any]:
        """Return the values for scripts."""
        figures = self.figures
        return {
            "padding_share": round_significant(figures.padding_share),
            "batches": figures.num_batches,
            "max_pixels": figures.peak_pixels,
            "mean_pixels": round_significant(figures.mean_pixels),
            "options": dict(self.options),
            "time_over_random": round_significant(self.time_over_random),
            "epoch_s": round_significant(self.seconds),
            "peak_memory_bytes": int(self.peak_gb * 1e9),
            "companions": round_significant(self.companions),
            "step_imbalance": round_significant(figures.step_imbalance),
            "epoch_imbalance": round_significant(figures.epoch_imbalance),
            "num_resized": figures.num_resized,
            "num_oversized": figures.num_oversized,
        }


@dataclass(frozen=True)
class ShapesAnswer:
    """The answer: the collection, all policies, the recommended one and why."""

    found: ScannedFolder
    sizes: NDArray[np.int64]
    question: ShapesQuestion
    policies: Mapping[str, PolicyAnswer]
    recommended: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the values for scripts."""
        from corewise.shapes.answer_text import write_code

        heights, widths = self.sizes[:, 0], self.sizes[:, 1]
        pixels = heights * widths
        best = self.policies[self.recommended]
        return {
            "folder": self.found.folder,
            "images": {
                "num_images": len(self.sizes),
                "megapixels": round_significant(float(pixels.sum()) / 1e6),
                "mean_megapixels": round_significant(float(pixels.mean()) / 1e6),
                "max_megapixels": round_significant(float(pixels.max()) / 1e6),
                "heights": [int(heights.min()), int(heights.max())],
                "widths": [int(widths.min()), int(widths.max())],
                "num_turned": int(np.count_nonzero(self.found.orientations >= 5)),
                "num_grey": int(np.count_nonzero(self.found.channels < 3)),
                "num_with_alpha": int(np.count_nonzero((self.found.channels == 2) | (self.found.channels == 4))),
                "num_16_bit": int(np.count_nonzero(self.found.bits > 8)),
                "num_cached": self.found.num_cached,
                "num_other_files": self.found.num_other_files,
                "problems": [{"path": each.path, "reason": each.reason} for each in self.found.problems],
            },
            "policies": {name: each.to_json() for name, each in self.policies.items()},
            "recommended": {
                "policy": self.recommended,
                **best.options,
                "reason": self.reason,
                "code": write_code(self),
            },
        }


def answer_shapes(
    found: ScannedFolder, question: ShapesQuestion, memory_bytes: int, show: Callable[[str], None]
) -> ShapesAnswer:
    """Plan an epoch with every policy, none with more memory than random batches, and recommend one.

    Args:
        memory_bytes: what the user may use; it limits the batch if the question does not.
        show: called with what is being done.
    """
    sizes = found.sizes if question.short_side is None else scale_short_side(found.sizes, question.short_side)
    limits = _choose_limits(sizes, question, memory_bytes)
    answers: dict[str, PolicyAnswer] = {}
    for policy in POLICIES:
        show(f"planning {policy} batches")
        if policy in ("budget", "pack"):
            options = {"max_pixels": limits.budget}
        else:
            options = {"batch_size": limits.batch}
            # Equal numbers of large images would otherwise exceed the memory of random batches.
            if policy != "random":
                options["max_pixels"] = limits.peak
        answers[policy] = _plan_policy(sizes, policy, options, question, answers.get("random"))
    recommended, reason = _recommend(answers, question)
    return ShapesAnswer(found, sizes, question, answers, recommended, reason)


@dataclass(frozen=True)
class _Limits:
    """Images per batch, the most pixels of any batch, and the pixels of `budget` and `pack`."""

    batch: int
    peak: int
    budget: int


def _choose_limits(sizes: NDArray[np.int64], question: ShapesQuestion, memory_bytes: int) -> _Limits:
    """Return limits with which no policy takes more memory than random batches, or than the user allows."""
    pixels = sizes[:, 0] * sizes[:, 1]
    # A limit below the largest image would only put that image into its own, larger batch.
    largest, mean = int(pixels.max()), float(pixels.mean())
    if question.batch is not None:
        peak = _find_peak(sizes, question.batch, question)
        # About as many images as asked, so that an epoch has as many updates.
        budget = min(peak, max(largest, int(ROOM_FOR_PADDING * question.batch * mean)))
        return _Limits(question.batch, peak, budget)
    by_memory = int(MEMORY_SHARE * memory_bytes / 1e3 / question.gb_per_megapixel)
    limit = question.max_pixels or max(by_memory, largest)
    batch = max(1, min(len(sizes) // question.ranks, int(limit / max(1.0, mean))))
    for _ in range(_MAX_SHRINKS):
        peak = _find_peak(sizes, batch, question)
        if peak <= limit or batch == 1:
            break
        batch = max(1, min(batch - 1, int(batch * limit / peak)))
    return _Limits(batch, limit, limit)


def _find_peak(sizes: NDArray[np.int64], batch: int, question: ShapesQuestion) -> int:
    sampler = ShapeBatchSampler(sizes, policy="random", batch_size=batch, seed=question.seed, world_size=question.ranks)
    return sampler.compute_figures().peak_pixels


def _plan_policy(
    sizes: NDArray[np.int64],
    policy: str,
    options: Mapping[str, int],
    question: ShapesQuestion,
    random: PolicyAnswer | None,
) -> PolicyAnswer:
    sampler = ShapeBatchSampler(
        sizes,
        policy=policy,
        batch_size=options.get("batch_size"),
        max_pixels=options.get("max_pixels"),
        seed=question.seed,
        world_size=question.ranks,
    )
    figures = sampler.compute_figures()
    rate = question.seconds_per_megapixel
    plan = sampler.plan_epoch()
    # Each step takes as long as its largest batch.
    step_megapixels = float(plan.costs[plan.steps].max(axis=1).sum()) / 1e6
    return PolicyAnswer(
        policy,
        options,
        figures,
        sampler.estimate_companions(3),
        rate * step_megapixels if rate is not None else None,
        question.gb_per_megapixel * figures.peak_pixels / 1e6,
        figures.padded_pixels / random.figures.padded_pixels if random else 1.0,
    )


def _recommend(answers: Mapping[str, PolicyAnswer], question: ShapesQuestion) -> tuple[str, str]:
    """Return the recommended policy and the reason."""
    random, bucket = answers["random"].figures, answers["bucket"].figures
    if random.padding_share <= LITTLE_PADDING:
        return "random", f"random batches hold only {100 * random.padding_share:.1f} % padding"
    budget = answers["budget"].figures
    if abs(bucket.padding_share - budget.padding_share) > CLEAR_DIFFERENCE:
        best, other = ("bucket", "budget") if bucket.padding_share < budget.padding_share else ("budget", "bucket")
        share = answers[other].figures.padding_share
        return best, f"`{other}` batches hold {100 * share:.1f} % padding"
    if question.max_pixels is not None:
        return "budget", "it fills the pixels that you allow"
    unevenness = bucket.peak_pixels / bucket.mean_pixels
    if unevenness <= EVEN_MEMORY:
        return "bucket", "batches of equally many images keep memory even here"
    return "budget", (
        f"with equally many images, the largest batch would hold {unevenness:.1f} times the pixels of the mean; "
        "equal pixels keep memory even"
    )


def require_images(found: ScannedFolder, ranks: int) -> None:
    """Raise UserError if the folder holds no image, or fewer images than ranks."""
    if not len(found.sizes):
        first = f"; the first problem: {found.problems[0].path}: {found.problems[0].reason}" if found.problems else ""
        raise UserError(
            f"{found.folder} holds no image that can be read ({found.num_other_files:,} other files{first}). "
            "Name a folder with JPEG, PNG, GIF, BMP, WebP, TIFF or PNM files"
        )
    if len(found.sizes) < ranks:
        raise UserError(
            f"--ranks {ranks}: {found.folder} holds {len(found.sizes)} images, too few for a batch per rank; "
            f"use at most {len(found.sizes)}"
        )
