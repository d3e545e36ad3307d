"""Whether a problem fits into memory, and how much of it would.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Mapping, Optional

FREE, THERE = "are free", "are all there is for a process"


@dataclasses.dataclass(frozen=True)
class Demand:
    """The memory of a problem, part by part, by the number of what can be made fewer."""

    num: int  # of samples in the minibatch, or rows: memory grows with it alone
    setting: str  # how to set it, as in `set args.mb to`
    noun: str  # what it counts, as in `minibatch`
    parts: Callable[[int], Mapping[str, int]]  # what of the problem -> bytes, for such a number
    sizes: Mapping[str, str]  # what of the problem -> the sizes that make it smaller

    def bytes_for(self, num: int) -> int:
        return sum(self.parts(num).values())

    def times(self, factor: float) -> Demand:
        """The same problem where every part takes so many times the memory."""

        def parts(num: int) -> Mapping[str, int]:
            return {name: math.ceil(factor * size) for name, size in self.parts(num).items()}

        return self if factor == 1.0 else dataclasses.replace(self, parts=parts)


def shortage(demand: Demand, free_bytes: int, there_is: str = FREE) -> Optional[str]:
    """Why the problem does not fit into so many bytes and what would; None where it fits."""
    needed_bytes = demand.bytes_for(demand.num)
    if needed_bytes <= free_bytes:
        return None
    told = f"the problem needs {_amount(needed_bytes)}, {_amount(free_bytes)} {there_is}"
    num = largest_that_fits(demand, free_bytes)
    if num:
        return f"{told}; the largest {demand.noun} that fits is {num}: {demand.setting} {num}"
    parts = demand.parts(1)
    largest = max(parts, key=lambda name: parts[name])
    most = f"most of it, {_amount(parts[largest])}, is for the {largest}: reduce {demand.sizes[largest]}"
    if demand.num == 1:
        return f"{told}; {most}"
    least = _amount(demand.bytes_for(1))
    return f"{told}; a {demand.noun} of 1 needs {least} and does not fit either; {most}"


def largest_that_fits(demand: Demand, free_bytes: int) -> int:
    """The largest number for which the problem fits; 0: none."""
    fixed_bytes = demand.bytes_for(0)
    each_bytes = demand.bytes_for(1) - fixed_bytes
    return max(0, (free_bytes - fixed_bytes) // max(1, each_bytes))


def _amount(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({num_bytes / 1e9:.3g} GB)"
