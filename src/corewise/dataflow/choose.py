"""The candidate that runs: each timed for real, in turns; plain execution wins ties.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, Mapping, Sequence

LEAST_GAIN = 0.02  # below this a plan is not worth its threads
CALL_S = 400e-6  # what a planned call does besides its tasks, in caches that these have emptied
LEAST_ROUNDS = 3
MOST_ROUNDS = 25
_HOPELESS = 1.5  # of the best first call: not timed again where calls take long
_KEPT_OF_BEST = 1.15  # after a few rounds, slower ones than this drop out
_NARROW = 0.04  # plain execution faster by less than this may have been lucky
_STEADY = 0.20  # and where its runs lie further apart than this, something else disturbed them


def timed_in_turns(candidates: Mapping[str, Callable[[], object]], budget_s: float) -> Dict[str, List[float]]:
    """Seconds of each candidate's runs; hopeless ones stop early."""
    start = time.perf_counter()
    warming: Dict[str, float] = {}
    for name, run in candidates.items():
        began = time.perf_counter()
        run()
        warming[name] = time.perf_counter() - began
    racing = _worth_racing(warming, budget_s)
    times: Dict[str, List[float]] = {name: ([] if name in racing else [warming[name]]) for name in candidates}
    for number in range(MOST_ROUNDS):
        for name in racing:
            began = time.perf_counter()
            candidates[name]()
            times[name].append(time.perf_counter() - began)
        if number + 1 >= LEAST_ROUNDS:
            if time.perf_counter() - start > budget_s:
                break
            best = min(typical(times[name]) for name in racing)
            racing = [n for n in racing if n == "plain" or typical(times[n]) <= _KEPT_OF_BEST * best]
        racing = racing[1:] + racing[:1]  # nobody always follows the same one
    return times


def _worth_racing(first_calls: Mapping[str, float], budget_s: float) -> List[str]:
    """All, or where calls take long those that began well, or at last plain execution and its best rival."""
    total = sum(first_calls.values())
    rivals = sorted((name for name in first_calls if name != "plain"), key=lambda name: first_calls[name])
    if LEAST_ROUNDS * total > budget_s:
        rivals = rivals[:1]
    elif 4 * total > budget_s:
        rivals = [name for name in rivals if first_calls[name] <= _HOPELESS * first_calls[rivals[0]]]
    return ["plain", *rivals]


def typical(times: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def is_doubtful(times: Mapping[str, Sequence[float]], rivals: Sequence[str], plain: str = "plain") -> bool:
    """Whether plain execution won over these narrowly, or while something else disturbed it."""
    if not rivals:
        return False
    best_s = min(typical(times[name]) for name in rivals)
    return best_s < (1 + _NARROW) * typical(times[plain]) or _spread(times[plain]) > _STEADY


def _spread(times: Sequence[float]) -> float:
    """How far the middle half of the runs lies apart, as a share of the median."""
    ordered = sorted(times)
    middle = typical(ordered)
    return (ordered[-1 - len(ordered) // 4] - _low(ordered)) / middle if middle > 0 else 0.0


def best_of(times: Mapping[str, Sequence[float]], plain: str = "plain") -> str:
    """The fastest candidate whose gain over plain shows in the median and in the best runs alike."""
    fastest = min(times, key=lambda name: typical(times[name]))
    wins = _is_faster(typical(times[fastest]), typical(times[plain]))
    wins = wins and _is_faster(_low(times[fastest]), _low(times[plain]))
    return fastest if wins and _mostly_less(times[fastest], times[plain]) else plain


def _mostly_less(ones: Sequence[float], others: Sequence[float]) -> bool:
    """Whether a call was faster than the other's of the same round, three times out of four."""
    rounds = list(zip(ones, others))
    return sum(one < other for one, other in rounds) >= 0.75 * len(rounds)


def _is_faster(one_s: float, plain_s: float) -> bool:
    return one_s + CALL_S <= (1 - LEAST_GAIN) * plain_s


def _low(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 4]
