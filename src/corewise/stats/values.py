"""What every statistic accepts: finite numbers that a clock or a counter can give."""

import math
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_LARGEST_EXPONENT = math.log(sys.float_info.max)


def non_negative(values: Sequence[float], *, min_num: int = 1) -> Values:
    """The values as an array; ValueError if one is negative or not finite, or if there are too few."""
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


def positive(values: Sequence[float], *, min_num: int = 1) -> Values:
    """The values as an array, fit for a logarithm; ValueError if one is zero, negative or not finite."""
    array = non_negative(values, min_num=min_num)
    if (array == 0).any():
        raise ValueError("values must be greater than zero: 0 found")
    return array


def error_rate(confidence: float) -> float:
    """1 - confidence; ValueError unless the confidence lies between 0 and 1."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, for example 0.95, not {confidence!r}")
    return 1.0 - confidence


def shifted_mean(values: Values) -> float:
    """The mean, exact when all values are equal (a plain sum is not)."""
    return float(values[0] + (values - values[0]).mean())


def sample_variance(values: Values) -> float:
    """The variance over n - 1, exactly 0 when all values are equal; needs two values."""
    return float((values - values[0]).var(ddof=1))


def finite_exp(exponent: float) -> float:
    """e to the exponent, held at the largest float: a record holds no infinity."""
    return math.exp(min(exponent, _LARGEST_EXPONENT))
