"""List the possible widths of teams on a number of cores, and their positions.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import Tuple


def list_widths(num_cores: int) -> Tuple[int, ...]:
    """List powers of two, equal shares of the cores, and all cores, in ascending order."""
    widths = {num_cores}
    width = 1
    while width < num_cores:
        widths.add(width)
        width *= 2
    widths |= {num_cores // parts for parts in (2, 3) if num_cores % parts == 0}
    return tuple(sorted(widths))


def list_slots(width: int, num_cores: int) -> Tuple[int, ...]:
    """List the first cores of adjacent teams of this width."""
    return tuple(range(0, num_cores - width + 1, width))
