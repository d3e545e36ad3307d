"""What is decided from fresh runs: the effort, the budget, the winner, and honesty."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from made_arena import space

from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.spec.trial import NO_CHECK
from corewise.tuner.answer import answer, choose
from corewise.tuner.cold import ColdStart
from corewise.tuner.confirm import (
    EFFORTS,
    MAIN,
    Confirmed,
    doubt_by_others,
    effort_s,
    fitting_effort,
    is_unchecked,
    limit_since,
    once_warm,
    protocols_for,
    require_budget,
)
from corewise.tuner.found import Found, Judged
from corewise.tuner.knobs import Offer
from corewise.tuner.script_session import MIN_STARTS, fitting
from corewise.tuner.space import Setting, Space

TWO = space(a=(0, 1), b=(0, 1))
DEFAULT, BEST, HAND = (0, 0), (1, 1), (1, 0)
QUICK = Judged(DEFAULT, "default", throughput=100.0, latency_s=0.01, start_s=0.5)

HOST = SimpleNamespace(allocation=SimpleNamespace(num_cores=2), facts=SimpleNamespace(cpu_model="A CPU"))


@dataclass(frozen=True)
class About:
    """Something to answer for."""

    name: str = "made up"
    mode: str = "infer"
    batch: int = 4
    host: Any = field(default_factory=lambda: HOST)
    asked: tuple[str, ...] = ()
    space: Space = TWO
    offer: Offer = Offer(TWO, ())  # noqa: RUF009


def record(rates: Sequence[float], latency_s: float = 0.01) -> Record:
    return Record(
        trial_id=f"{random.random()}",
        study="tune",
        status="ok" if rates else "failed",
        metrics={"samples_per_s": sorted(rates)[len(rates) // 2], "latency_p50_s": latency_s}
        if rates
        else {},
        runs=tuple({"status": "ok", "metrics": {"samples_per_s": rate}} for rate in rates),
    )


def winner(records: Mapping[Setting, Record], best: Setting = BEST) -> Setting:
    return choose(About(), Found(best), HAND, Confirmed(records)).winner


def drawn(dice: random.Random, mean: float, num: int = 5, sd: float = 0.02) -> list[float]:
    return [mean * math.exp(dice.gauss(0, sd)) for _ in range(num)]


def test_a_winner_by_fresh_runs_wins() -> None:
    assert winner({DEFAULT: record([10, 10.1, 9.9]), BEST: record([20, 20.1, 19.8])}) == BEST


def test_the_hand_setting_wins_when_fresh_runs_show_it_ahead_of_the_searchs_best() -> None:
    rates = {DEFAULT: record([10, 10.1, 9.9]), BEST: record([15, 15.1, 14.9]), HAND: record([20, 20.1, 19.9])}
    assert winner(rates) == HAND


def test_a_best_that_fails_or_answers_later_in_fresh_runs_does_not_win() -> None:
    default = record([10, 10.1, 9.9])
    assert winner({DEFAULT: default, BEST: record([])}) == DEFAULT
    assert winner({DEFAULT: default, BEST: record([20, 20.1, 19.9], latency_s=0.02)}) == DEFAULT


def test_equal_settings_are_told_apart_in_no_more_than_one_case_in_twenty() -> None:
    dice = random.Random(4)
    wrong = sum(
        winner({each: record(drawn(dice, 100.0)) for each in (DEFAULT, BEST, HAND)}) != DEFAULT
        for _ in range(1000)
    )
    assert wrong <= 50


def test_the_more_time_there_is_the_more_careful_are_the_fresh_runs() -> None:
    needs_s = [effort_s(each, [QUICK] * 2, [QUICK] * 3) for each in EFFORTS]
    assert needs_s == sorted(needs_s, reverse=True)
    assert fitting_effort(needs_s[0] + 1, [QUICK] * 2, [QUICK] * 3) == EFFORTS[0]
    assert fitting_effort(needs_s[2] + 0.01, [QUICK] * 2, [QUICK] * 3) == EFFORTS[2]
    assert fitting_effort(0.0, [QUICK] * 2, []) == EFFORTS[-1]


def test_a_run_costs_what_it_took_to_start_and_not_again_what_was_compiled() -> None:
    on_gpu = replace(QUICK, start_s=6.0)
    compiled = replace(QUICK, start_s=30.0, compile_s=20.0)
    least = EFFORTS[-1]

    def run_s(judged: Judged) -> float:
        """Of one more run of it."""
        more = replace(least, num_main=least.num_main + 1)
        return effort_s(more, [judged], []) - effort_s(least, [judged], [])

    assert run_s(QUICK) < 1.5
    assert 5.5 < run_s(on_gpu) < 8.0
    assert 14.0 < run_s(compiled) < 17.0


def test_the_least_effort_measures_the_two_that_decide_alone() -> None:
    assert set(protocols_for(EFFORTS[-1], 60.0)) == {MAIN}
    assert all(each.num_main >= 3 for each in EFFORTS)


def test_a_budget_for_less_than_two_settings_is_refused_with_what_is_needed() -> None:
    require_budget(100.0, 2.0, QUICK, "100 s")
    with pytest.raises(UserError, match=r"too short.*--budget 20s or more"):
        require_budget(3.0, 2.0, QUICK, "3 s")


@pytest.mark.parametrize(("rate", "agrees"), [(100.0, True), (91.0, True), (109.0, True), (80.0, False)])
def test_a_cold_start_that_disagrees_by_more_than_a_tenth_is_told(rate: float, agrees: bool) -> None:
    told = ColdStart("run", rate).disagreement(record([100.0, 100.0, 100.0]))
    assert (told == "") is agrees


def test_a_command_that_fails_from_cold_is_told() -> None:
    assert "no such file" in ColdStart("run", 0.0, "no such file").disagreement(record([1.0]))


def test_a_disturbed_cold_start_is_told_with_what_disturbed_it() -> None:
    measured = record([100.0, 100.0, 100.0])
    told = ColdStart("run", 50.0, disturbances=("other processes used 1 s",)).disagreement(measured)
    assert told.endswith("measured again on a quiet machine (other processes used 1 s)")
    shaken = replace(measured, metrics={**measured.metrics, "num_disturbed_runs": 2.0})
    assert ColdStart("run", 50.0).disagreement(shaken).endswith("(2 of 3 runs were disturbed)")
    assert ColdStart("run", 50.0).disagreement(measured).endswith("before it is measured again")


def test_a_setting_without_time_for_fresh_runs_is_not_said_to_have_failed() -> None:
    records = {DEFAULT: record([10, 10.1, 9.9]), BEST: record([20, 20.1, 19.8])}
    [note] = choose(About(), Found(BEST), HAND, Confirmed(records)).notes
    assert note.endswith("was not measured in fresh runs: no time was left for it")


def test_runs_that_scatter_too_much_to_tell_are_not_called_equal() -> None:
    scattered = {DEFAULT: record([2, 10, 50]), BEST: record([20, 45, 70])}
    assert choose(About(), Found(BEST), HAND, Confirmed(scattered)).is_undecided
    equal = {DEFAULT: record([10, 10.1, 9.9]), BEST: record([10, 10.05, 9.95])}
    assert not choose(About(), Found(BEST), HAND, Confirmed(equal)).is_undecided


def test_a_stopped_search_whose_start_only_tied_has_found_nothing_yet() -> None:
    start = Judged(HAND, "won", score=0.001, half_width=0.02, throughput=100.1, against=DEFAULT)
    tied = answer(About(), Found(HAND, {DEFAULT: QUICK, HAND: start}))
    assert (tied.found_nothing, tied.speedup, tied.best.words) == (True, 1.0, "default")
    ahead = answer(About(), Found(HAND, {DEFAULT: QUICK, HAND: replace(start, score=0.5)}))
    assert not ahead.found_nothing
    assert ahead.speedup == pytest.approx(math.exp(0.5))


def test_one_gain_has_one_interval_wherever_it_is_told() -> None:
    dice = random.Random(2)
    records = {each: record(drawn(dice, rate)) for each, rate in ((DEFAULT, 1.0), (HAND, 1.1), (BEST, 2.0))}
    found, confirmed = Found(BEST, {DEFAULT: QUICK}), Confirmed(records)
    choice = choose(About(), found, HAND, confirmed)
    told = answer(About(), found, confirmed=confirmed, hand=HAND, choice=choice)
    assert told.best.over_default_interval == told.speedup_interval
    assert told.ladder[-1].total == told.speedup
    at_once = replace(confirmed, records={each: records[each] for each in (DEFAULT, BEST)})
    choice = choose(About(), found, HAND, at_once)
    told = answer(About(), found, confirmed=at_once, hand=HAND, choice=choice)
    [step] = told.ladder
    assert step.gain_interval == told.speedup_interval


def test_a_rival_without_fresh_runs_widens_no_interval() -> None:
    dice = random.Random(3)
    records = {DEFAULT: record(drawn(dice, 1.0)), BEST: record(drawn(dice, 2.0))}
    alone = choose(About(), Found(BEST), BEST, Confirmed(records)).against
    beside = choose(About(), Found(BEST), HAND, Confirmed(records)).against
    assert alone is not None
    assert beside is not None
    assert alone.interval == beside.interval


@pytest.mark.parametrize(("reference", "is_told"), [(NO_CHECK, True), ("itself in float64", False)])
def test_a_step_that_brings_no_check_is_known(reference: str, is_told: bool) -> None:
    ran = {"status": "ok", "ranks": [{"rank": 0, "check_reference": reference}]}
    assert is_unchecked([record([1.0]), replace(record([1.0]), runs=(ran,))]) is is_told


def test_fresh_runs_from_before_a_tuning_began_anew_do_not_count() -> None:
    dates = ("", "2026-11-16T05:32:44.707Z", "2026-11-16T05:32:44.708Z")
    limits = [limit_since(date, 120.0) for date in dates]
    assert len({protocols_for(EFFORTS[0], limit)[MAIN] for limit in limits}) == 3
    assert limits[0] == 120.0
    assert max(limits) < 121.0
    assert limits == [limit_since(date, 120.0) for date in dates]  # a call that goes on finds its own runs


@pytest.mark.parametrize(("left_s", "measured"), [(5.0, [DEFAULT, BEST, HAND]), (4.9, [DEFAULT, BEST])])
def test_of_a_script_what_decides_is_started_afresh_and_others_where_there_is_time(
    left_s: float, measured: list[Setting]
) -> None:
    starts_s = {DEFAULT: 2.0, BEST: 1.0, HAND: 2.0}
    assert list(fitting(starts_s, (DEFAULT, BEST), MIN_STARTS * left_s)) == measured


@pytest.mark.parametrize(("starts_s", "start_s"), [((0.4, 0.3), 0.4), ((2.0, 0.3), 1.4), ((), 1.4)])
def test_a_default_that_was_slow_because_it_was_first_is_planned_as_the_others_started(
    starts_s: tuple[float, ...], start_s: float
) -> None:
    others = [Judged(HAND, "lost", latency_s=0.01, start_s=each + 5, compile_s=5.0) for each in starts_s]
    refused = Judged(BEST, "rejected", kind="infeasible")
    found = once_warm(replace(QUICK, start_s=1.4), [*others, refused])
    assert found.start_s == pytest.approx(start_s)
    assert replace(found, start_s=QUICK.start_s) == QUICK


@pytest.mark.parametrize(("num_disturbed", "is_told"), [(0, False), (2, False), (3, True), (6, True)])
def test_fresh_runs_that_were_disturbed_are_told(num_disturbed: int, is_told: bool) -> None:
    runs = [{"status": "ok", "disturbances": ["others"] * (n < num_disturbed)} for n in range(6)]
    records = [replace(record([1.0]), runs=tuple(half)) for half in (runs[:3], runs[3:])]
    told = doubt_by_others(records)
    assert told.startswith(f"{num_disturbed} of 6 fresh runs") == is_told
    assert ("(others)" in told) == is_told
    assert bool(told) == is_told
