"""Widths that follow the allocation while a program runs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from corewise.dataflow.allocation import usable_cpus
from corewise.dataflow.choose import best_of, typical

CHECK_S = 0.2  # how often the allocation is looked at, at most
_RACE_CALLS = 3  # calls of each kind after a change, before one is settled on


class Allocation:
    """The CPUs to use now; looks at most every 0.2 s."""

    def __init__(self, cpus: Optional[Sequence[int]] = None) -> None:
        self._given = tuple(cpus) if cpus is not None else None
        self._asked_threads = torch.get_num_threads()  # as the user set it, before we narrowed it
        self._set_threads = self._asked_threads
        self._next_look = 0.0
        self._cpus: Tuple[int, ...] = ()

    def cpus(self) -> Tuple[int, ...]:
        """The CPUs as of the last look; narrows the calling thread when there are fewer than its threads."""
        now = time.monotonic()
        if now >= self._next_look or not self._cpus:
            self._next_look = now + CHECK_S
            self._cpus = self._look()
        return self._cpus

    def give_back(self) -> None:
        """Lets torch have the threads again that it lost to CPUs given by name."""
        if self._given and torch.get_num_threads() == self._set_threads < self._asked_threads:
            torch.set_num_threads(self._asked_threads)

    def _look(self) -> Tuple[int, ...]:
        threads = torch.get_num_threads()
        if threads != self._set_threads:  # someone else has set it meanwhile
            self._asked_threads = threads
        found = self._given or usable_cpus(self._asked_threads)
        wanted = min(self._asked_threads, len(found))
        if wanted != threads and (self._cpus or wanted < threads):
            torch.set_num_threads(wanted)
        self._set_threads = torch.get_num_threads()
        return found


def resized(costs: Sequence[Mapping[int, float]], widths: Sequence[int]) -> Tuple[Dict[int, float], ...]:
    """Costs at other widths, between the measured ones by interpolation, beyond them as the widest."""
    return tuple({width: _at(cost, width) for width in widths} for cost in costs)


def _at(cost: Mapping[int, float], width: int) -> float:
    if width in cost:
        return cost[width]
    below = [w for w in cost if w < width]
    above = [w for w in cost if w > width]
    if not above:
        return cost[max(below)]
    if not below:
        return cost[min(above)] * min(above) / width
    low, high = max(below), min(above)
    share = math.log(width / low) / math.log(high / low)
    return cost[low] * (1 - share) + cost[high] * share


class OnlineRace:
    """Settles between plain execution and a plan on real calls, when there was no time to measure apart."""

    def __init__(self) -> None:
        self.times: Dict[str, List[float]] = {"plain": [], "planned": []}

    def next_name(self) -> str:
        """Whose turn it is."""
        return min(self.times, key=lambda name: len(self.times[name]))

    def note(self, name: str, seconds: float) -> Optional[str]:
        """Takes a call's time; returns the winner once it is known."""
        self.times[name].append(seconds)
        if min(len(ones) for ones in self.times.values()) <= _RACE_CALLS:
            return None
        return best_of(self._warm())

    def typical_s(self) -> Dict[str, float]:
        """What calls of each took."""
        return {name: typical(seen) for name, seen in self._warm().items()}

    def _warm(self) -> Dict[str, List[float]]:
        return {name: seen[1:] for name, seen in self.times.items()}  # the first of each warms up
