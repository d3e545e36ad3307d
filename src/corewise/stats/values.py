"""Check the values that every statistic accepts: finite numbers of a clock or a counter."""

import math
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_LARGEST_EXPONENT = math.log(sys.float_info.max)


def require_non_negative(values: Sequence[float], *, min_num: int = 1) -> Values:
    """Return the values as an array, or raise ValueError if one is negative or not finite, or too few."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"a flat sequence of numbers is needed, not {array.ndim} dimensions")
    if array.size < min_num:
        raise ValueError(f"at least {min_num} value is needed, not {array.size}")
    if not np.isfinite(array).all():
        raise ValueError("values must be finite: NaN or infinity found")
    if (array < 0).any():
        raise ValueError(f"values must not be negative: {array.min()!r} found")
    return array


def require_positive(values: Sequence[float], *, min_num: int = 1) -> Values:
    """Return the values as an array, or raise ValueError if one is not positive and finite."""
    array = require_non_negative(values, min_num=min_num)
    if (array == 0).any():
        raise ValueError("values must be greater than zero: 0 found")
    return array


def compute_error_rate(confidence: float) -> float:
    """Return 1 - confidence, or raise ValueError unless the confidence is between 0 and 1."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, for example 0.95, not {confidence!r}")
    return 1.0 - confidence


def compute_shifted_mean(values: Values) -> float:
    """Compute the mean; it is exact if all values are equal, unlike a plain sum."""
    return float(values[0] + (values - values[0]).mean())


def compute_sample_variance(values: Values) -> float:
    """Compute the variance over n - 1 of at least two values; exactly 0 if all values are equal."""
    return float((values - values[0]).var(ddof=1))


def compute_finite_exp(exponent: float) -> float:
    """Compute e to the exponent, capped at the largest float, because records hold no infinity."""
    return math.exp(min(exponent, _LARGEST_EXPONENT))
