"""What a trial's parameters mean for each rank: its batch and its learning rate."""

from collections.abc import Callable

import pytest

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, NoEffect
from corewise.measured.runtimes.trial_params import compute_learning_rate, compute_rank_batch

Build = Callable[..., TrialParameters]


@pytest.mark.parametrize(("scope", "batch"), [("process", 24), ("node", 8), ("global", 4)])
def test_each_rank_gets_its_part_of_the_batch(params: Build, scope: str, batch: int) -> None:
    assert compute_rank_batch(params(batch=24, batch_scope=scope, nodes=2, processes=3)) == batch


def test_a_batch_that_the_ranks_do_not_divide_is_refused_with_the_nearest_sizes(params: Build) -> None:
    with pytest.raises(Infeasible, match="multiple of 4 processes; set batch: 8 or 12, or batch_scope: process"):
        compute_rank_batch(params(batch=10, batch_scope="global", nodes=2, processes=2))


@pytest.mark.parametrize(("scope", "rate"), [("process", 0.6), ("node", 0.2)])
def test_the_linear_rule_follows_the_samples_of_a_step(params: Build, scope: str, rate: float) -> None:
    trial = params(mode="train", batch=6, batch_scope=scope, nodes=2, processes=3, learning_rate_rule="linear")
    assert compute_learning_rate(trial, 0.1) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"mode": "infer", "processes": 2}, "nothing is trained"),
        ({"mode": "train"}, "there is one process"),
        ({"mode": "train", "processes": 2, "batch": 4, "batch_scope": "global"}, "do not grow with the processes"),
    ],
)
def test_a_rule_that_changes_nothing_is_refused(params: Build, values: dict[str, object], reason: str) -> None:
    with pytest.raises(NoEffect, match=reason):
        compute_learning_rate(params(learning_rate_rule="linear", **values), 0.1)
    assert compute_learning_rate(params(**values), 0.1) == 0.1
