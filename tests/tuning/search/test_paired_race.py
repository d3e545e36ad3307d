"""Races between two entrants: the winner, and the number of rounds."""

import math

import pytest
from tests.tuning.simulated_arena import SimulatedArena, build_space

from corewise.tuning.search.paired_race import (
    MAX_ROUNDS,
    MIN_OBVIOUS_ROUNDS,
    USABLE_HALF_WIDTH,
    Noise,
    Racer,
    Verdict,
    run_race,
)

TWO = build_space(quicker=(0, 1))


def simulate_race(
    ahead: float,
    noise: float = 0.005,
    seed: int = 0,
    *,
    is_simpler: bool = False,
    is_late: bool = False,
    min_lead: float = 0.0,
) -> Verdict:
    arena = SimulatedArena(TWO, lambda params: ahead * params["quicker"], noise=noise, seed=seed)
    incumbent = Racer(arena.enter((0,), 10))
    for _ in range(3):
        incumbent.take_sample()
    return run_race(
        incumbent, arena.enter((1,), 10), Noise(), is_simpler=is_simpler, min_lead=min_lead, is_late=lambda: is_late
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_challenger_that_is_clearly_ahead_wins_in_few_rounds(seed: int) -> None:
    verdict = simulate_race(0.2, seed=seed)
    assert verdict.outcome == "won"
    assert len(verdict.samplings) == MIN_OBVIOUS_ROUNDS + 1
    assert verdict.log_ratio == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_challenger_that_is_far_ahead_wins_after_one_sampling(seed: int) -> None:
    verdict = simulate_race(0.5, seed=seed)
    assert (verdict.outcome, len(verdict.samplings)) == ("won", 1)
    assert verdict.log_ratio - verdict.half_width > 0


def test_a_late_race_ends() -> None:
    assert len(simulate_race(0.02, noise=0.1).samplings) > 2
    assert len(simulate_race(0.02, noise=0.1, is_late=True).samplings) == 2


@pytest.mark.parametrize("seed", range(5))
def test_a_challenger_that_is_far_behind_is_dropped_after_one_sampling(seed: int) -> None:
    verdict = simulate_race(-0.4, seed=seed)
    assert (verdict.outcome, len(verdict.samplings)) == ("lost", 1)


@pytest.mark.parametrize("seed", range(5))
def test_equal_entrants_are_tied_unless_the_challenger_is_simpler(seed: int) -> None:
    assert simulate_race(0.0, seed=seed).outcome in ("tied", "lost")
    assert simulate_race(0.001, 0.001, seed=seed, is_simpler=True).outcome == "won"


def test_a_race_ends_after_the_maximum_of_rounds_in_any_noise() -> None:
    assert len(simulate_race(0.02, noise=0.1).samplings) <= MAX_ROUNDS + 1


@pytest.mark.parametrize("pace", [-0.3, 0.4])
def test_a_change_of_machine_speed_decides_no_race(pace: float) -> None:
    arena = SimulatedArena(TWO, lambda params: pace * (arena.read_clock() > 5) + 0.001 * params["quicker"])
    incumbent = Racer(arena.enter((0,), 10))
    for _ in range(3):
        incumbent.take_sample()
    arena.seconds = 6.0
    verdict = run_race(incumbent, arena.enter((1,), 10), Noise())
    assert verdict.outcome == "tied"
    assert verdict.log_ratio == pytest.approx(0.001)


@pytest.mark.parametrize("pace", [-0.1, 0.2])
def test_the_latency_of_one_sampling_is_compared_with_the_concurrent_one(pace: float) -> None:
    arena = SimulatedArena(
        TWO,
        lambda params: pace * (arena.read_clock() > 5) + 0.4 * params["quicker"],
        latency=lambda params: math.exp(-pace * (arena.read_clock() > 5) + 0.1 * params["quicker"]),
    )
    incumbent = Racer(arena.enter((0,), 10))
    for _ in range(3):
        incumbent.take_sample()
    arena.seconds = 6.0
    verdict = run_race(incumbent, arena.enter((1,), 10), Noise())
    assert (verdict.outcome, len(verdict.samplings)) == ("won", 1)
    assert verdict.log_latency == pytest.approx(0.1)


def test_noise_is_estimated_from_all_races() -> None:
    noise = Noise()
    wide = noise.compute_half_width(3, ())
    for _ in range(20):
        noise.add_pairs([0.001, -0.001, 0.0])
    assert noise.compute_half_width(3, ()) < wide / 3
    quiet = noise.sd
    noise.add_pairs([0.5, -0.5, 0.4])
    # One race was disturbed.
    assert noise.sd < 3 * quiet
    for _ in range(15):
        noise.add_pairs([0.5, -0.5, 0.4])
    assert noise.sd > 0.05


def test_half_widths_shrink_with_the_number_of_pairs() -> None:
    assert Noise().compute_half_width(4, ()) == pytest.approx(Noise().compute_half_width(1, ()) / math.sqrt(4))


def test_one_disturbed_pair_decides_no_race() -> None:
    assert Noise().compute_half_width(3, (4.6, 0.0, 0.0)) > 4.6 / 3
    assert Noise().compute_half_width(3, (0.01, 0.0, 0.0)) < 0.05


def test_a_simpler_challenger_wins_no_noisy_tie() -> None:
    verdicts = [simulate_race(0.0, noise=0.1, seed=seed, is_simpler=True) for seed in range(20)]
    undecided = [each for each in verdicts if -0.01 < each.log_ratio < each.half_width / 2 - USABLE_HALF_WIDTH]
    assert undecided
    assert {each.outcome for each in undecided} == {"tied"}


@pytest.mark.parametrize(
    ("ahead", "min_lead", "outcome"),
    [(0.05, 0.03, "won"), (0.02, 0.03, "tied"), (-0.01, -0.03, "won"), (-0.05, -0.03, "lost")],
)
def test_a_minimum_lead_decides(ahead: float, min_lead: float, outcome: str) -> None:
    for is_simpler in (False, True):
        verdict = simulate_race(ahead, noise=0.002, is_simpler=is_simpler, min_lead=min_lead)
        assert verdict.outcome == outcome
