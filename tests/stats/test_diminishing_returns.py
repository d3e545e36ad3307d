"""The width from which one more thread gives less than its share."""

import numpy as np

from corewise.stats.diminishing_returns import find_diminishing_width


def list_around(mean: float, spread: float = 0.01, num: int = 5) -> list[float]:
    return [mean * (1 + spread * (i - (num - 1) / 2)) for i in range(num)]


def test_the_first_step_that_gives_less_than_half_counts_when_all_later_ones_do() -> None:
    rates = {1: list_around(1), 2: list_around(1.9), 4: list_around(3.6), 8: list_around(4.5), 16: list_around(5.0)}
    assert find_diminishing_width(rates) == 4


def test_a_step_that_pays_again_moves_the_place() -> None:
    rates = {1: list_around(1), 2: list_around(1.1), 4: list_around(3.5), 8: list_around(3.6)}
    assert find_diminishing_width(rates) == 4


def test_good_scaling_has_no_such_place() -> None:
    assert find_diminishing_width({1: list_around(1), 2: list_around(2), 4: list_around(3.9)}) is None


def test_noise_shows_nothing() -> None:
    assert find_diminishing_width({1: list_around(1, 0.3), 2: list_around(1.2, 0.3), 4: list_around(1.7, 0.3)}) is None


def test_one_run_shows_nothing() -> None:
    assert find_diminishing_width({1: [1.0, 1.0], 2: [1.0]}) is None


def test_the_base_need_not_be_one() -> None:
    assert find_diminishing_width({4: list_around(4), 8: list_around(4.5)}) == 4
    assert find_diminishing_width({4: list_around(4), 8: list_around(7.5)}) is None


def test_values_without_spread_need_no_interval() -> None:
    assert find_diminishing_width({1: [1.0, 1.0], 2: [1.4, 1.4]}) == 1
    assert find_diminishing_width({1: [1.0, 1.0], 2: [1.6, 1.6]}) is None


def test_false_claims_at_the_border_stay_below_the_error_rate() -> None:
    random = np.random.default_rng(7)
    claims = 0
    for _ in range(400):
        # The second unit adds exactly half of its share.
        one, two = random.normal(1, 0.05, 5), random.normal(1.5, 0.05, 5)
        claims += find_diminishing_width({1: one.tolist(), 2: two.tolist()}) is not None
    assert claims <= 400 * 0.05
