"""From which width on does one more thread or process give less than its share?"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from scipy.special import stdtrit

from corewise.stats.values import error_rate, positive, sample_variance, shifted_mean


def diminishing_from(
    rates: Mapping[int, Sequence[float]], *, share: float = 0.5, confidence: float = 0.95
) -> int | None:
    """The least width from which every step to the next is shown to give less than `share` of the ideal.

    `rates` holds one value per process run for each width; the least width is the base, and the ideal is that
    each unit adds what one unit of the base gives. A step from v to w counts as shown when the upper end of
    the interval of p_w - p_v - share (w - v) / b p_b lies below 0: a contrast of independent means, Welch's
    degrees of freedom (Satterthwaite, Biometrics Bulletin 1946). None when the last step is not shown.
    """
    widths = sorted(rates)
    found = None
    for narrow, wide in reversed(list(pairwise(widths))):
        if not _gives_less(rates, widths[0], narrow, wide, share, confidence):
            break
        found = narrow
    return found


def _gives_less(
    rates: Mapping[int, Sequence[float]], base: int, narrow: int, wide: int, share: float, confidence: float
) -> bool:
    factors = {wide: 1.0, narrow: -1.0}
    factors[base] = factors.get(base, 0.0) - share * (wide - narrow) / base
    total = variance = spread = 0.0
    for width, factor in factors.items():
        values = positive(rates[width], min_num=0)
        if values.size < 2:
            return False
        part = factor**2 * sample_variance(values) / values.size
        total += factor * shifted_mean(values)
        variance += part
        spread += part**2 / (values.size - 1)
    if variance == 0:
        return total < 0
    half = float(stdtrit(variance**2 / spread, 1 - error_rate(confidence) / 2)) * math.sqrt(variance)
    return total + half < 0
