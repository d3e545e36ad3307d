"""How much a machine changes its speed from one occasion to another."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.values import positive
from corewise.stats.variance import components_of


@dataclasses.dataclass(frozen=True)
class Drift:
    """The relative standard deviation of the ratio between two occasions, or None with the reason."""

    sd: float | None
    degrees: float
    num_occasions: int
    reason: str = ""


def estimate_drift(occasions: Sequence[Sequence[float]]) -> Drift:
    """The drift seen in one thing measured on several occasions, one group of process medians for each.

    Variance between occasions by the analysis of variance of logarithms (see `variance_components`); a ratio
    of two occasions carries it twice. Hand `sd` and `degrees` to `compare`; A/A trials or canary loops serve.
    """
    if len(occasions) < 2:
        return Drift(None, 0.0, len(occasions), "drift shows only between occasions: at least 2 are needed")
    parts = components_of([np.log(positive(values)) for values in occasions])
    if parts.between is None:
        reason = "one value on each occasion: drift and noise cannot be told apart"
        return Drift(None, 0.0, len(occasions), reason)
    return Drift(math.sqrt(2 * parts.between), len(occasions) - 1.0, len(occasions))
