"""Find the width from which one more thread or process adds less than its share."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from scipy.special import stdtrit

from corewise.stats.values import compute_error_rate, compute_sample_variance, compute_shifted_mean, require_positive


def find_diminishing_width(
    rates: Mapping[int, Sequence[float]], *, share: float = 0.5, confidence: float = 0.95
) -> int | None:
    """Return the smallest width from which every further step adds less than `share` of the ideal.

    `rates` holds one value per process run for each width. The smallest width is the base; ideally each unit
    adds what one unit of the base gives. A step from v to w is significant if the upper end of the interval
    of p_w - p_v - share (w - v) / b p_b is below 0: a contrast of independent means with Welch's degrees of
    freedom (Satterthwaite, Biometrics Bulletin 1946). The result is None if the last step is not significant.
    """
    widths = sorted(rates)
    result = None
    for narrow, wide in reversed(list(pairwise(widths))):
        if not _is_below_share(rates, widths[0], narrow, wide, share, confidence):
            break
        result = narrow
    return result


def _is_below_share(
    rates: Mapping[int, Sequence[float]], base: int, narrow: int, wide: int, share: float, confidence: float
) -> bool:
    factors = {wide: 1.0, narrow: -1.0}
    factors[base] = factors.get(base, 0.0) - share * (wide - narrow) / base
    total = variance = spread = 0.0
    for width, factor in factors.items():
        values = require_positive(rates[width], min_num=0)
        if values.size < 2:
            return False
        part = factor**2 * compute_sample_variance(values) / values.size
        total += factor * compute_shifted_mean(values)
        variance += part
        spread += part**2 / (values.size - 1)
    if variance == 0:
        return total < 0
    half = float(stdtrit(variance**2 / spread, 1 - compute_error_rate(confidence) / 2)) * math.sqrt(variance)
    return total + half < 0
