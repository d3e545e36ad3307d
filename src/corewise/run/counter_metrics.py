"""Computes metrics from counts of instructions, cycles and cache misses; each name begins with its source."""

from collections.abc import Mapping, Sequence
from typing import Any

from corewise.measured.probes.counter_names import PERF
from corewise.measured.trial import RankResult, Trial

# Counts of a whole sampling, which add up over ranks.
COUNTED_METRICS = tuple(f"{PERF}_{name}" for name in ("instructions", "cycles", "llc_misses"))
PIXELS_PER_MEGAPIXEL = 1e6


def compute_perf_metrics(trial: Trial, results: Sequence[RankResult]) -> dict[str, float]:
    """Compute the metrics of one run; empty unless every rank has counted."""
    num_samples = sum(r.metrics.get("num_steps", 0.0) * r.samples_per_step for r in results)
    counts = {
        name.removeprefix(f"{PERF}_"): sum(r.metrics[name] for r in results)
        for name in COUNTED_METRICS
        if all(name in r.metrics for r in results)
    }
    return derive_metrics(PERF, counts, num_samples, find_pixels(trial, results[0].facts if results else {}))


def derive_metrics(
    source: str, counts: Mapping[str, float], num_samples: float, pixels_per_sample: float
) -> dict[str, float]:
    """Derive the metrics of a source from counts of this many samples.

    Args:
        counts: `instructions`, and where known `cycles` and `llc_misses`.
        pixels_per_sample: pixels of an image; 0 if samples are no images.

    Example:
        >>> derive_metrics("perf", {"instructions": 8e9, "cycles": 4e9}, 2.0, 0.0)
        {'perf_instructions_per_sample': 4000000000.0, 'perf_ipc': 2.0, 'perf_cycles_per_sample': 2000000000.0}
    """
    instructions = counts.get("instructions", 0.0)
    if instructions <= 0 or num_samples <= 0:
        return {}
    metrics = {f"{source}_instructions_per_sample": instructions / num_samples}
    if pixels_per_sample > 0:
        megapixels = num_samples * pixels_per_sample / PIXELS_PER_MEGAPIXEL
        metrics[f"{source}_instructions_per_megapixel"] = instructions / megapixels
    if counts.get("cycles", 0.0) > 0:
        metrics[f"{source}_ipc"] = instructions / counts["cycles"]
        metrics[f"{source}_cycles_per_sample"] = counts["cycles"] / num_samples
    if "llc_misses" in counts:
        # Misses of the last cache level per thousand instructions.
        metrics[f"{source}_mpki"] = 1000 * counts["llc_misses"] / instructions
        metrics[f"{source}_llc_misses_per_sample"] = counts["llc_misses"] / num_samples
    return metrics


def find_pixels(trial: Trial, facts: Mapping[str, Any]) -> float:
    """Find the pixels of a sample: of a built-in model, or of a user's module that takes images; otherwise 0."""
    known = trial.work.get("pixels_per_sample") or facts.get("pixels_per_sample") or 0.0
    return float(known) if isinstance(known, int | float) else 0.0
