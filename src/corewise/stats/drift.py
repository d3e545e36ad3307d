"""Estimate how much the speed of a machine changes from one occasion to another."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.values import require_positive
from corewise.stats.variance import compute_components


@dataclasses.dataclass(frozen=True)
class Drift:
    """The relative standard deviation of the ratio between two occasions, or None with the reason."""

    sd: float | None
    degrees: float
    num_occasions: int
    reason: str = ""


def estimate_drift(occasions: Sequence[Sequence[float]]) -> Drift:
    """Estimate drift from one trial on several occasions, with one group of process medians for each.

    The variance between occasions comes from an analysis of variance of logarithms (see
    `estimate_variance_components`); a ratio of two occasions contains it twice. Pass `sd` and `degrees` to
    `compare_trials`. A/A trials and canary loops are suitable data.
    """
    if len(occasions) < 2:
        return Drift(None, 0.0, len(occasions), "drift needs at least 2 occasions")
    parts = compute_components([np.log(require_positive(values)) for values in occasions])
    if parts.between is None:
        reason = "one value on each occasion: drift and noise cannot be separated"
        return Drift(None, 0.0, len(occasions), reason)
    return Drift(math.sqrt(2 * parts.between), len(occasions) - 1.0, len(occasions))
