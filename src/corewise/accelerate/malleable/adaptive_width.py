"""Follow the CPU allocation while a program runs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from corewise.accelerate.malleable.cpu_allocation import list_usable_cpus
from corewise.accelerate.malleable.plan.candidate_choice import choose_fastest, compute_median, explain_loss

# Seconds between two checks of the allocation. A check reads files below /sys.
CHECK_INTERVAL_S = 0.2
# Timed calls of each candidate after a change of the allocation, before one of them is chosen.
_CALLS_PER_CANDIDATE = 3


class AllocationMonitor:
    """Report the CPUs that may be used now, and narrow torch to them."""

    def __init__(self, cpus: Optional[Sequence[int]] = None) -> None:
        self._fixed_cpus = tuple(cpus) if cpus is not None else None
        # The user's setting, before this object narrowed it.
        self._requested_threads = torch.get_num_threads()
        self._current_threads = self._requested_threads
        self._next_check_s = 0.0
        self._cpus: Tuple[int, ...] = ()

    def read_cpus(self) -> Tuple[int, ...]:
        """Return the CPUs of the last check; narrow the calling thread if it has more threads than CPUs."""
        now = time.monotonic()
        if now >= self._next_check_s or not self._cpus:
            self._next_check_s = now + CHECK_INTERVAL_S
            self._cpus = self._check_cpus()
        return self._cpus

    def restore_num_threads(self) -> None:
        """Restore torch's number of threads if the option `cpus` reduced it."""
        if self._fixed_cpus and torch.get_num_threads() == self._current_threads < self._requested_threads:
            torch.set_num_threads(self._requested_threads)

    def _check_cpus(self) -> Tuple[int, ...]:
        threads = torch.get_num_threads()
        # The user changed the number of threads since the last check.
        if threads != self._current_threads:
            self._requested_threads = threads
        cpus = self._fixed_cpus or list_usable_cpus(self._requested_threads)
        wanted = min(self._requested_threads, len(cpus))
        if wanted != threads and (self._cpus or wanted < threads):
            torch.set_num_threads(wanted)
        self._current_threads = torch.get_num_threads()
        return cpus


def interpolate_costs(costs: Sequence[Mapping[int, float]], widths: Sequence[int]) -> Tuple[Dict[int, float], ...]:
    """Estimate costs at other widths: interpolate between measured widths, extend the widest."""
    return tuple({width: _interpolate_cost(cost, width) for width in widths} for cost in costs)


def _interpolate_cost(cost: Mapping[int, float], width: int) -> float:
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
    """Choose between plain execution and a plan on real calls, where nothing was timed beforehand."""

    def __init__(self) -> None:
        self.times: Dict[str, List[float]] = {"plain": [], "planned": []}

    def next_name(self) -> str:
        """Return the candidate that runs next."""
        return min(self.times, key=lambda name: len(self.times[name]))

    def record(self, name: str, seconds: float) -> Optional[str]:
        """Record the time of a call; return the winner once there is one."""
        self.times[name].append(seconds)
        if min(len(times) for times in self.times.values()) <= _CALLS_PER_CANDIDATE:
            return None
        return choose_fastest(self._drop_warmup())

    def explain_loss(self) -> str:
        """Explain why the plan lost; empty if it won."""
        times = self._drop_warmup()
        return explain_loss(times["planned"], times["plain"])

    def compute_medians_s(self) -> Dict[str, float]:
        """Compute the median seconds of each candidate's calls."""
        return {name: compute_median(times) for name, times in self._drop_warmup().items()}

    def _drop_warmup(self) -> Dict[str, List[float]]:
        # The first call of each candidate warms up.
        return {name: times[1:] for name, times in self.times.items()}
