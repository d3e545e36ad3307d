"""The model of step time: what it finds in synthetic data, how well it predicts, and when it refuses."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from corewise.stats.scaling_model import Scaling, Term, check_largest_count, fit_scaling_model

COUNTS = (1, 2, 4, 8)
TRUTHS: dict[str, tuple[Callable[[int], float], Scaling]] = {
    "bandwidth": (lambda n: 1 + 0.8 * (n - 1) / n, Scaling.WEAK),
    "ring latency": (lambda n: 1 + 0.2 * (n - 1) / n + 0.01 * (n - 1), Scaling.WEAK),
    "tree latency": (lambda n: 1 + 0.05 * math.log2(n), Scaling.WEAK),
    "overlap": (lambda n: 1 + max(0.0, 0.9 * (n - 1) / n - 0.4), Scaling.WEAK),
    "perfect": (lambda n: 1.0, Scaling.WEAK),
    "strong": (lambda n: 1 / n + 0.1 * (n - 1) / n, Scaling.STRONG),
}


def simulate(truth: Callable[[int], float], seed: int, noise: float = 0.015) -> dict[int, list[float]]:
    """Simulate five process runs of each count and the truth of 16."""
    generator = np.random.default_rng(seed)
    steps = {n: (0.3 * truth(n) * np.exp(generator.normal(0, noise, 5))).tolist() for n in COUNTS}
    return {**steps, 16: [0.3 * truth(16)]}


@pytest.mark.parametrize("name", TRUTHS)
def test_the_held_out_count_is_predicted_within_a_tenth_and_covered(name: str) -> None:
    truth, scaling = TRUTHS[name]
    checks = [check_largest_count(simulate(truth, seed), scaling) for seed in range(8)]
    known = [check for check in checks if check is not None]
    assert len(known) == 8
    assert max(abs(check.error) for check in known) <= 0.10
    assert all(check.is_covered for check in known)
    assert max(check.prediction.relative_half_width for check in known) <= 0.20


def test_more_noise_gives_a_wider_interval() -> None:
    truth, scaling = TRUTHS["bandwidth"]
    quiet, noisy = (check_largest_count(simulate(truth, 3, noise), scaling) for noise in (0.01, 0.2))
    assert quiet is not None
    assert noisy is not None
    assert noisy.prediction.relative_half_width > 2 * quiet.prediction.relative_half_width


def test_the_bandwidth_term_is_found_where_it_is_the_cost() -> None:
    model = fit_scaling_model(simulate(TRUTHS["bandwidth"][0], 1, noise=0.001), Scaling.WEAK)
    assert model.estimate_cost_s(Term.COMPUTE) == pytest.approx(0.3, rel=0.02)
    assert model.estimate_cost_s(Term.BANDWIDTH) == pytest.approx(0.24, rel=0.15)


def test_the_base_may_be_another_count_than_one() -> None:
    truth = TRUTHS["strong"][0]
    steps = {n: [truth(n), 1.001 * truth(n)] for n in (2, 4, 8, 16, 32)}
    check = check_largest_count(steps, Scaling.STRONG)
    assert check is not None
    assert abs(check.error) < 0.1


def test_two_counts_give_no_model_but_the_reason() -> None:
    model = fit_scaling_model({1: [1.0], 2: [1.1]}, Scaling.WEAK)
    assert model.reason == "no model from fewer than 3 counts: 2 measured"
    with pytest.raises(ValueError, match="no model"):
        model.predict(4)


def test_three_counts_cannot_be_checked_by_holding_one_out() -> None:
    assert check_largest_count({1: [1.0], 2: [1.1], 4: [1.2]}, Scaling.WEAK) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_times_that_no_clock_gives_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="must"):
        fit_scaling_model({1: [1.0], 2: [bad], 4: [1.0]}, Scaling.WEAK)
