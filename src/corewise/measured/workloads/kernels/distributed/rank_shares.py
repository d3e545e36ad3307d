"""Shares of a problem: how rows, tiles or samples are split among ranks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import List, Tuple


def split_evenly(count: int, num_parts: int) -> List[Tuple[int, int]]:
    """Split a range into consecutive parts whose sizes differ by at most one; return first and end of each.

    Example:
        >>> split_evenly(5, 2)
        [(0, 3), (3, 5)]
    """
    size, rest = divmod(count, num_parts)
    starts = [part * size + min(part, rest) for part in range(num_parts + 1)]
    return list(zip(starts, starts[1:]))
