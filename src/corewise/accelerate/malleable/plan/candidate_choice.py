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
# A plan that takes at most this share of plain execution's median may lose more rounds than others.
_CLEAR_RATIO = 0.5
# Share of the rounds that a plan must win.
_MIN_ROUND_SHARE = 0.75
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
    """Choose the fastest of the candidates that beat plain execution; plain execution if none does."""
    winners = [name for name in times if name != plain and not explain_loss(times[name], times[plain])]
    return min(winners, key=lambda name: compute_median(times[name])) if winners else plain


def explain_losses(times: Mapping[str, Sequence[float]], chosen: str, plain: str = "plain") -> Dict[str, str]:
    """Explain for each candidate that does not run why it lost, from the times that decided."""
    losses = {}
    for name in times:
        if name not in (chosen, plain):
            losses[name] = explain_loss(times[name], times[plain]) or f"slower than {chosen}"
    return losses


def explain_loss(ones: Sequence[float], plain: Sequence[float]) -> str:
    """Explain why a candidate does not beat plain execution; empty if it does.

    Both the median and the lower quartile must be faster, in three of four rounds. Where plain execution is
    disturbed in most rounds, its fast calls are luck: half its time in most rounds and in total is enough.
    """
    if len(ones) < min(MIN_ROUNDS, len(plain)):
        return "too slow in its first call"
    one_s, plain_s = compute_median(ones), compute_median(plain)
    if one_s >= plain_s:
        return "slower than plain"
    if not _is_faster(one_s, plain_s):
        return f"faster than plain by less than {100 * MIN_GAIN:g} % plus {1e3 * CALL_OVERHEAD_S:g} ms"
    rounds = list(zip(ones, plain))
    num_faster = sum(one < other for one, other in rounds)
    is_clear = one_s <= _CLEAR_RATIO * plain_s and sum(one - other for one, other in rounds) < 0
    if is_clear and num_faster > len(rounds) / 2:
        return ""
    if num_faster < _MIN_ROUND_SHARE * len(rounds):
        return f"faster than plain in only {num_faster} of {len(rounds)} rounds"
    if not _is_faster(_compute_lower_quartile(ones), _compute_lower_quartile(plain)):
        return "faster than plain only while plain was disturbed"
    return ""


def _is_faster(one_s: float, plain_s: float) -> bool:
    return one_s + CALL_OVERHEAD_S <= (1 - MIN_GAIN) * plain_s


def _compute_lower_quartile(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 4]
