"""Time the candidates alternately and choose one; plain execution wins ties.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, Sequence

# Smallest relative gain for which a plan is used.
MIN_GAIN = 0.02
# Overhead of a planned call besides its tasks, with cold caches, in seconds.
CALL_OVERHEAD_S = 400e-6
MIN_ROUNDS = 3
MAX_ROUNDS = 25
# Where calls are long, candidates slower than this multiple of the best first call are not timed again.
_HOPELESS_RATIO = 1.5
# After MIN_ROUNDS, candidates slower than this multiple of the best median drop out.
_DROPOUT_RATIO = 1.15
# Plain execution that wins by a smaller relative margin may have been lucky.
_NARROW_MARGIN = 0.04
# A larger relative interquartile range of plain execution indicates a disturbance.
_STEADY_SPREAD = 0.20


def time_candidates(candidates: Mapping[str, Callable[[], object]], budget_s: float) -> Dict[str, List[float]]:
    """Return the seconds of each candidate's runs; hopeless candidates stop early."""
    start = time.perf_counter()
    warming: Dict[str, float] = {}
    for name, run in candidates.items():
        began = time.perf_counter()
        run()
        warming[name] = time.perf_counter() - began
    racing = _select_contenders(warming, budget_s)
    times: Dict[str, List[float]] = {name: ([] if name in racing else [warming[name]]) for name in candidates}
    for number in range(MAX_ROUNDS):
        for name in racing:
            began = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - began)
        if number + 1 >= MIN_ROUNDS:
            if time.perf_counter() - start > budget_s:
                break
            best = min(compute_median(times[name]) for name in racing)
            racing = [n for n in racing if n == "plain" or compute_median(times[n]) <= _DROPOUT_RATIO * best]
        # Rotate, so that no candidate always runs after the same one.
        racing = racing[1:] + racing[:1]
    return times


def _select_contenders(first_calls: Mapping[str, float], budget_s: float) -> List[str]:
    """Select all candidates, or fewer where calls are long: at least plain execution and its best rival."""
    total = sum(first_calls.values())
    rivals = sorted((name for name in first_calls if name != "plain"), key=lambda name: first_calls[name])
    if MIN_ROUNDS * total > budget_s:
        rivals = rivals[:1]
    elif 4 * total > budget_s:
        rivals = [name for name in rivals if first_calls[name] <= _HOPELESS_RATIO * first_calls[rivals[0]]]
    return ["plain", *rivals]


def compute_median(times: Sequence[float]) -> float:
    """Compute the median."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def is_doubtful(times: Mapping[str, Sequence[float]], rivals: Sequence[str], plain: str = "plain") -> bool:
    """Return whether plain execution won narrowly, or while its times were disturbed."""
    if not rivals:
        return False
    best_s = min(compute_median(times[name]) for name in rivals)
    return (
        best_s < (1 + _NARROW_MARGIN) * compute_median(times[plain]) or _compute_spread(times[plain]) > _STEADY_SPREAD
    )


def _compute_spread(times: Sequence[float]) -> float:
    """Compute the interquartile range relative to the median."""
    ordered = sorted(times)
    middle = compute_median(ordered)
    return (ordered[-1 - len(ordered) // 4] - _compute_lower_quartile(ordered)) / middle if middle > 0 else 0.0


def choose_fastest(times: Mapping[str, Sequence[float]], plain: str = "plain") -> str:
    """Choose the fastest candidate if both median and lower quartile beat plain execution, else plain."""
    fastest = min(times, key=lambda name: compute_median(times[name]))
    wins = _is_faster(compute_median(times[fastest]), compute_median(times[plain]))
    wins = wins and _is_faster(_compute_lower_quartile(times[fastest]), _compute_lower_quartile(times[plain]))
    return fastest if wins and _is_mostly_faster(times[fastest], times[plain]) else plain


def _is_mostly_faster(ones: Sequence[float], others: Sequence[float]) -> bool:
    """Return whether at least three of four calls were faster than the other's call of the same round."""
    rounds = list(zip(ones, others))
    return sum(one < other for one, other in rounds) >= 0.75 * len(rounds)


def _is_faster(one_s: float, plain_s: float) -> bool:
    return one_s + CALL_OVERHEAD_S <= (1 - MIN_GAIN) * plain_s


def _compute_lower_quartile(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 4]
