"""The memory of a problem, and the largest problem that fits.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Mapping, Optional

FREE, AVAILABLE = "are free", "are available to a process"


@dataclasses.dataclass(frozen=True)
class MemoryDemand:
    """The memory of a problem as a function of one number that can be reduced.

    Attributes:
        num: Samples in the minibatch, or rows; memory grows with it.
        setting: How to set the number, for example "set args.mb to".
        noun: What the number counts, for example "minibatch".
        parts: Bytes of each part of the problem for a given number.
        sizes: For each part, the sizes that reduce it.
    """

    num: int
    setting: str
    noun: str
    parts: Callable[[int], Mapping[str, int]]
    sizes: Mapping[str, str]

    def count_bytes(self, num: int) -> int:
        return sum(self.parts(num).values())

    def scale(self, factor: float) -> MemoryDemand:
        """Return the demand with every part multiplied by `factor`."""

        def scale_parts(num: int) -> Mapping[str, int]:
            return {name: math.ceil(factor * size) for name, size in self.parts(num).items()}

        return self if factor == 1.0 else dataclasses.replace(self, parts=scale_parts)


def explain_shortage(demand: MemoryDemand, free_bytes: int, availability: str = FREE) -> Optional[str]:
    """Return why the problem does not fit into `free_bytes` and what would; None if it fits."""
    needed_bytes = demand.count_bytes(demand.num)
    if needed_bytes <= free_bytes:
        return None
    message = f"the problem needs {_format_amount(needed_bytes)}, {_format_amount(free_bytes)} {availability}"
    num = find_largest_fit(demand, free_bytes)
    if num:
        return f"{message}; the largest {demand.noun} that fits is {num}: {demand.setting} {num}"
    parts = demand.parts(1)
    largest = max(parts, key=lambda name: parts[name])
    most = f"most of it, {_format_amount(parts[largest])}, is for the {largest}: reduce {demand.sizes[largest]}"
    if demand.num == 1:
        return f"{message}; {most}"
    least = _format_amount(demand.count_bytes(1))
    return f"{message}; a {demand.noun} of 1 needs {least} and does not fit either; {most}"


def find_largest_fit(demand: MemoryDemand, free_bytes: int) -> int:
    """Return the largest number for which the problem fits; 0 if none does."""
    fixed_bytes = demand.count_bytes(0)
    each_bytes = demand.count_bytes(1) - fixed_bytes
    return max(0, (free_bytes - fixed_bytes) // max(1, each_bytes))


def _format_amount(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({num_bytes / 1e9:.3g} GB)"
