"""The confirmation: its effort and budget, the choice of the winner, and its error rate."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tuning.simulated_arena import build_space

from corewise.errors import UserError
from corewise.measured.trial import NO_CHECK
from corewise.study.record import Record
from corewise.tuning.confirm.cold_start import ColdStart
from corewise.tuning.confirm.confirmation_runs import (
    EFFORTS,
    Confirmation,
    Role,
    build_protocols,
    choose_effort,
    describe_disturbed_runs,
    estimate_cold_start_s,
    estimate_confirmation_s,
    estimate_least_budget_s,
    is_unchecked,
    limit_default_start,
    require_budget,
)
from corewise.tuning.result.answer_builder import build_answer, choose_winner
from corewise.tuning.scripts.script_session import MIN_STARTS, select_fitting
from corewise.tuning.search.judgements import Judgement, SearchState
from corewise.tuning.search.knobs import Offer
from corewise.tuning.search.setting_space import Setting, Space

TWO = build_space(a=(0, 1), b=(0, 1))
DEFAULT, BEST, HAND = (0, 0), (1, 1), (1, 0)
QUICK = Judgement(DEFAULT, "default", throughput=100.0, latency_s=0.01, start_s=0.5)

HOST = SimpleNamespace(allocation=SimpleNamespace(num_cores=2), facts=SimpleNamespace(cpu_model="A CPU"))


@dataclass(frozen=True)
class Target:
    """Something to tune that is never started."""

    name: str = "example"
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
        metrics={"samples_per_s": sorted(rates)[len(rates) // 2], "latency_p50_s": latency_s} if rates else {},
        runs=tuple({"status": "ok", "metrics": {"samples_per_s": rate}} for rate in rates),
    )


def find_winner(records: Mapping[Setting, Record], best: Setting = BEST) -> Setting:
    return choose_winner(Target(), SearchState(best), HAND, Confirmation(records)).winner


def draw_rates(rng: random.Random, mean: float, num: int = 5, sd: float = 0.02) -> list[float]:
    return [mean * math.exp(rng.gauss(0, sd)) for _ in range(num)]


def test_a_winner_by_fresh_runs_wins() -> None:
    assert find_winner({DEFAULT: record([10, 10.1, 9.9]), BEST: record([20, 20.1, 19.8])}) == BEST


def test_the_hand_setting_wins_when_fresh_runs_show_it_ahead_of_the_searchs_best() -> None:
    rates = {DEFAULT: record([10, 10.1, 9.9]), BEST: record([15, 15.1, 14.9]), HAND: record([20, 20.1, 19.9])}
    assert find_winner(rates) == HAND


def test_a_best_that_fails_or_has_a_worse_latency_in_fresh_runs_does_not_win() -> None:
    default = record([10, 10.1, 9.9])
    assert find_winner({DEFAULT: default, BEST: record([])}) == DEFAULT
    assert find_winner({DEFAULT: default, BEST: record([20, 20.1, 19.9], latency_s=0.02)}) == DEFAULT


def test_equal_settings_differ_significantly_in_at_most_one_case_in_twenty() -> None:
    rng = random.Random(4)
    wrong = sum(
        find_winner({each: record(draw_rates(rng, 100.0)) for each in (DEFAULT, BEST, HAND)}) != DEFAULT
        for _ in range(1000)
    )
    assert wrong <= 50


def test_the_more_time_there_is_the_more_careful_are_the_fresh_runs() -> None:
    needs_s = [estimate_confirmation_s(each, [QUICK] * 2, [QUICK] * 3) for each in EFFORTS]
    assert needs_s == sorted(needs_s, reverse=True)
    assert choose_effort(needs_s[0] + 1, [QUICK] * 2, [QUICK] * 3) == EFFORTS[0]
    assert choose_effort(needs_s[2] + 0.01, [QUICK] * 2, [QUICK] * 3) == EFFORTS[2]
    assert choose_effort(0.0, [QUICK] * 2, []) == EFFORTS[-1]


def test_a_run_costs_its_start_time_without_compiling_again() -> None:
    on_gpu = replace(QUICK, start_s=6.0)
    compiled = replace(QUICK, start_s=30.0, compile_s=20.0)
    least = EFFORTS[-1]

    def estimate_run_s(judgement: Judgement) -> float:
        """Estimate the cost of one more run."""
        more = replace(least, num_contender_runs=least.num_contender_runs + 1)
        return estimate_confirmation_s(more, [judgement], []) - estimate_confirmation_s(least, [judgement], [])

    assert estimate_run_s(QUICK) < 1.5
    assert 5.5 < estimate_run_s(on_gpu) < 8.0
    assert 14.0 < estimate_run_s(compiled) < 17.0


def test_the_least_effort_measures_only_the_contenders() -> None:
    assert set(build_protocols(EFFORTS[-1], 60.0)) == {Role.CONTENDER}
    assert all(each.num_contender_runs >= 3 for each in EFFORTS)


def test_a_budget_is_refused_only_if_the_default_alone_exceeds_it() -> None:
    require_budget(3.0, 2.0, QUICK)
    with pytest.raises(
        UserError, match=r"budget of 3 s is too short: the default alone took 4 s.*--budget 30s or more"
    ):
        require_budget(3.0, 4.0, QUICK)


def test_the_advised_budget_fits_the_default_two_settings_and_fresh_runs() -> None:
    slow = replace(QUICK, latency_s=5.0, start_s=20.0, setup_s=15.0)
    assert estimate_least_budget_s(30.0, slow) > 3 * 30.0 + estimate_confirmation_s(
        EFFORTS[-1], [slow, slow], [], starts_cold=False
    )


def test_a_short_time_leaves_out_cold_starts_before_fresh_runs() -> None:
    least_s = estimate_confirmation_s(EFFORTS[-1], [QUICK] * 2, [])
    without_s = estimate_confirmation_s(EFFORTS[-1], [QUICK] * 2, [], starts_cold=False)
    assert without_s < least_s
    assert choose_effort(without_s + 0.01, [QUICK] * 2, [QUICK]) == EFFORTS[-1]
    assert estimate_cold_start_s(EFFORTS[-1], QUICK) == pytest.approx((least_s - without_s) / 2)


@pytest.mark.parametrize(("rate", "agrees"), [(100.0, True), (91.0, True), (109.0, True), (80.0, False)])
def test_a_cold_start_that_disagrees_by_more_than_a_tenth_is_reported(rate: float, agrees: bool) -> None:
    message = ColdStart("run", rate).explain_disagreement(record([100.0, 100.0, 100.0]))
    assert (message == "") is agrees


def test_a_command_that_fails_from_cold_is_reported() -> None:
    assert "no such file" in ColdStart("run", 0.0, "no such file").explain_disagreement(record([1.0]))


def test_a_disturbed_cold_start_is_reported_with_its_cause() -> None:
    measured = record([100.0, 100.0, 100.0])
    message = ColdStart("run", 50.0, disturbances=("other processes used 1 s",)).explain_disagreement(measured)
    assert message.endswith("measured again on a quiet machine (other processes used 1 s)")
    disturbed = replace(measured, metrics={**measured.metrics, "num_disturbed_runs": 2.0})
    assert ColdStart("run", 50.0).explain_disagreement(disturbed).endswith("(2 of 3 runs were disturbed)")
    assert ColdStart("run", 50.0).explain_disagreement(measured).endswith("until it is measured again")


def test_a_setting_without_time_for_fresh_runs_is_not_reported_as_failed() -> None:
    records = {DEFAULT: record([10, 10.1, 9.9]), HAND: record([20, 20.1, 19.8])}
    [note] = choose_winner(Target(), SearchState(BEST), HAND, Confirmation(records)).notes
    assert note.endswith("was not measured in fresh runs: the budget was used up")


def test_noisy_runs_are_not_called_equal() -> None:
    scattered = {DEFAULT: record([2, 10, 50]), BEST: record([20, 45, 70])}
    assert choose_winner(Target(), SearchState(BEST), HAND, Confirmation(scattered)).is_undecided
    equal = {DEFAULT: record([10, 10.1, 9.9]), BEST: record([10, 10.05, 9.95])}
    assert not choose_winner(Target(), SearchState(BEST), HAND, Confirmation(equal)).is_undecided


def test_a_stopped_search_with_a_tied_start_has_found_nothing_yet() -> None:
    start = Judgement(HAND, "won", score=0.001, half_width=0.02, throughput=100.1, against=DEFAULT)
    tied = build_answer(Target(), SearchState(HAND, {DEFAULT: QUICK, HAND: start}))
    assert (tied.found_nothing, tied.speedup, tied.best.label) == (True, 1.0, "default")
    ahead = build_answer(Target(), SearchState(HAND, {DEFAULT: QUICK, HAND: replace(start, score=0.5)}))
    assert not ahead.found_nothing
    assert ahead.speedup == pytest.approx(math.exp(0.5))


def test_a_gain_has_the_same_interval_everywhere() -> None:
    rng = random.Random(2)
    records = {each: record(draw_rates(rng, rate)) for each, rate in ((DEFAULT, 1.0), (HAND, 1.1), (BEST, 2.0))}
    state, confirmation = SearchState(BEST, {DEFAULT: QUICK}), Confirmation(records)
    choice = choose_winner(Target(), state, HAND, confirmation)
    result = build_answer(Target(), state, confirmation=confirmation, hand=HAND, choice=choice)
    assert result.best.over_default_interval == result.speedup_interval
    assert result.ladder[-1].total == result.speedup
    together = replace(confirmation, records={each: records[each] for each in (DEFAULT, BEST)})
    choice = choose_winner(Target(), state, HAND, together)
    result = build_answer(Target(), state, confirmation=together, hand=HAND, choice=choice)
    [step] = result.ladder
    assert step.gain_interval == result.speedup_interval


def test_a_rival_without_fresh_runs_widens_no_interval() -> None:
    rng = random.Random(3)
    records = {DEFAULT: record(draw_rates(rng, 1.0)), BEST: record(draw_rates(rng, 2.0))}
    alone = choose_winner(Target(), SearchState(BEST), BEST, Confirmation(records)).against
    with_rival = choose_winner(Target(), SearchState(BEST), HAND, Confirmation(records)).against
    assert alone is not None
    assert with_rival is not None
    assert alone.interval == with_rival.interval


@pytest.mark.parametrize(("reference", "is_missing"), [(NO_CHECK, True), ("itself in float64", False)])
def test_a_step_without_a_check_is_detected(reference: str, is_missing: bool) -> None:
    ran = {"status": "ok", "ranks": [{"rank": 0, "check_reference": reference}]}
    assert is_unchecked([record([1.0]), replace(record([1.0]), runs=(ran,))]) is is_missing


@pytest.mark.parametrize(("left_s", "measured"), [(5.0, [DEFAULT, BEST, HAND]), (4.9, [DEFAULT, BEST])])
def test_contenders_of_a_script_are_always_confirmed_and_others_if_there_is_time(
    left_s: float, measured: list[Setting]
) -> None:
    starts_s = {DEFAULT: 2.0, BEST: 1.0, HAND: 2.0}
    assert list(select_fitting(starts_s, (DEFAULT, BEST), MIN_STARTS * left_s)) == measured


@pytest.mark.parametrize(("starts_s", "start_s"), [((0.4, 0.3), 0.4), ((2.0, 0.3), 1.4), ((), 1.4)])
def test_the_slow_first_start_of_the_default_does_not_count(starts_s: tuple[float, ...], start_s: float) -> None:
    others = [Judgement(HAND, "lost", latency_s=0.01, start_s=each + 5, compile_s=5.0) for each in starts_s]
    refused = Judgement(BEST, "rejected", category="infeasible")
    default = limit_default_start(replace(QUICK, start_s=1.4), [*others, refused])
    assert default.start_s == pytest.approx(start_s)
    assert replace(default, start_s=QUICK.start_s) == QUICK


@pytest.mark.parametrize(("num_disturbed", "is_described"), [(0, False), (2, False), (3, True), (6, True)])
def test_disturbed_fresh_runs_are_described(num_disturbed: int, is_described: bool) -> None:
    runs = [{"status": "ok", "disturbances": ["others"] * (n < num_disturbed)} for n in range(6)]
    records = [replace(record([1.0]), runs=tuple(half)) for half in (runs[:3], runs[3:])]
    text = describe_disturbed_runs(records)
    assert text.startswith(f"{num_disturbed} of 6 fresh runs") == is_described
    assert ("(others)" in text) == is_described
    assert bool(text) == is_described


def test_figures_and_gains_of_an_answer_are_ratios_of_the_same_means() -> None:
    # Medians would differ by 38 %, while the means differ little.
    records = {DEFAULT: record([100, 100, 199]), BEST: record([80, 138, 138])}
    state = SearchState(BEST, {DEFAULT: QUICK, BEST: replace(QUICK, setting=BEST, outcome="won")})
    confirmation = Confirmation(records)
    choice = choose_winner(Target(), state, BEST, confirmation)
    result = build_answer(Target(), state, confirmation=confirmation, hand=BEST, choice=choice)
    best = next(each for each in result.measured if each.label != "default")
    assert best.throughput / result.default.throughput == pytest.approx(best.over_default)
    assert best.over_default == pytest.approx((80 * 138 * 138 / (100 * 100 * 199)) ** (1 / 3))


def test_the_reason_for_no_gain_does_not_mention_tests_that_were_not_made() -> None:
    records = {DEFAULT: record([10, 10.1, 9.9]), BEST: record([10, 10.05, 9.95])}
    [note] = choose_winner(Target(), SearchState(BEST), BEST, Confirmation(records)).notes
    assert "is not significantly faster in fresh runs" in note
    assert "rank test" not in note
