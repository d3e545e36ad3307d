"""The widths a team may have on some number of cores, and where teams of a width may lie.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import Tuple


def widths_for(num_cores: int) -> Tuple[int, ...]:
    """Powers of two, even shares of the cores, and all of them, in rising order."""
    found = {num_cores}
    width = 1
    while width < num_cores:
        found.add(width)
        width *= 2
    found |= {num_cores // parts for parts in (2, 3) if num_cores % parts == 0}
    return tuple(sorted(found))


def slots(width: int, num_cores: int) -> Tuple[int, ...]:
    """The first cores of teams of this width, side by side."""
    return tuple(range(0, num_cores - width + 1, width))
