"""The fastest candidate runs if it is clearly the fastest, else the module itself."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from corewise.accelerate.malleable.plan import candidate_choice
from corewise.accelerate.malleable.plan.candidate_choice import (
    choose_fastest,
    compute_median,
    explain_losses,
    time_candidates,
)


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the clock of the timings, which nothing else moves."""
    now_s = [0.0]

    def advance(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(candidate_choice, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    return advance


def test_plain_wins_ties_and_small_gains() -> None:
    assert choose_fastest({"plain": [1.0, 1.0, 1.0], "plan": [1.0, 1.0, 1.0]}) == "plain"
    assert choose_fastest({"plain": [1.0, 1.0, 1.0], "plan": [0.985, 0.985, 0.985]}) == "plain"
    assert choose_fastest({"plain": [1.0, 1.0, 1.0], "plan": [0.9, 0.9, 0.9]}) == "plan"


def test_a_gain_below_the_overhead_of_a_plan_does_not_count() -> None:
    assert choose_fastest({"plain": [2e-5] * 3, "plan": [1e-5] * 3}) == "plain"


def test_a_gain_that_only_the_median_or_a_few_rounds_show_does_not_count() -> None:
    assert choose_fastest({"plain": [0.5, 0.5, 1.0, 1.0, 1.0], "plan": [0.6, 0.6, 0.6, 0.6, 0.6]}) == "plain"
    assert choose_fastest({"plain": [1.0, 1.0, 0.9, 0.9], "plan": [0.95, 0.95, 0.7, 0.7]}) == "plan"
    assert choose_fastest({"plain": [1.0, 0.6, 1.0, 0.6], "plan": [0.5, 0.7, 0.5, 0.7]}) == "plain"


def test_half_the_time_of_plain_execution_wins_although_plain_has_some_fast_calls() -> None:
    """On a busy machine plain execution is fast in some calls only, by luck."""
    plain = [0.316, 0.310, 0.120, 0.330, 0.500, 0.140, 0.320]
    assert choose_fastest({"plain": plain, "2×1": [0.150] * 7}) == "2×1"
    # It must win more than half of the rounds, and in total.
    assert choose_fastest({"plain": [0.1, 0.4, 0.4], "2×1": [0.2, 0.2, 0.2]}) == "2×1"
    assert choose_fastest({"plain": [0.1, 0.4, 0.4], "2×1": [2.0, 0.1, 0.1]}) == "plain"


def test_a_plan_wins_although_one_with_a_lower_median_does_not() -> None:
    times = {"plain": [1.0, 0.6, 1.0, 0.6], "erratic": [0.4, 0.7, 0.4, 0.7], "steady": [0.58, 0.57, 0.58, 0.57]}
    assert choose_fastest(times) == "steady"


def test_a_plan_that_was_timed_once_never_wins() -> None:
    assert choose_fastest({"plain": [1.0] * 3, "once": [0.1], "slower": [1.1] * 3}) == "plain"
    assert explain_losses({"plain": [1.0] * 3, "once": [0.1]}, "plain") == {"once": "too slow in its first call"}


def test_each_loser_has_a_reason_that_agrees_with_its_times() -> None:
    times = {"plain": [1.0] * 4, "best": [0.5] * 4, "good": [0.6] * 4, "slow": [1.2] * 4, "close": [0.99] * 4}
    assert explain_losses(times, choose_fastest(times)) == {
        "good": "slower than best",
        "slow": "slower than plain",
        "close": "faster than plain by less than 2 % plus 0.4 ms",
    }


def test_the_best_of_several_plans_runs() -> None:
    times = {"plain": [1.0] * 3, "one": [0.8] * 3, "other": [0.7] * 3}
    assert choose_fastest(times) == "other"
    assert compute_median([3.0, 1.0, 2.0]) == 2.0
    assert compute_median([1.0, 2.0]) == 1.5


def test_all_are_timed_in_turns_and_slow_ones_drop_out(spend: Callable[[float], None]) -> None:
    called: list[str] = []

    def candidate(name: str, seconds: float) -> None:
        called.append(name)
        spend(seconds)

    times = time_candidates(
        {"plain": lambda: candidate("plain", 0.002), "slow": lambda: candidate("slow", 0.02)}, budget_s=5.0
    )
    assert called[:4] == ["plain", "slow", "plain", "slow"]
    assert len(times["plain"]) > len(times["slow"]) >= 3


def test_where_calls_take_long_only_the_best_rival_is_timed_again(spend: Callable[[float], None]) -> None:
    waits = {"plain": 0.01, "good": 0.005, "bad": 0.02}
    times = time_candidates({name: lambda s=s: spend(s) for name, s in waits.items()}, budget_s=0.01)
    assert len(times["bad"]) == 1
    assert len(times["good"]) == len(times["plain"]) == 3
