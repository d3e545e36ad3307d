"""The efficiency of trials whose ranks exchange messages, against the trial of one rank."""

import math

import pytest
from tests.report.sample_trials import group_of, trial

from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.groups import Group
from corewise.analysis.scaling.scaling_curves import find_scaling_curves


def build_group(*points: tuple[float, int, str]) -> Group:
    """Build trials of training from their rate, processes and collectives."""
    return group_of(
        *(
            trial(rate, params={"mode": "train", "threads": 1, "nodes": 1, "processes": count, "collectives": backend})
            for rate, count, backend in points
        )
    )


def test_every_backend_is_compared_with_the_one_rank_that_exchanges_nothing() -> None:
    group = build_group((100.0, 1, "default"), (150.0, 2, "default"), (180.0, 2, "shared"), (320.0, 4, "shared"))
    assert compute_efficiencies(group).value == pytest.approx([1.0, 0.75, 0.9, 0.8])
    curves = find_scaling_curves(group)
    assert [[point.count for point in curve.points] for curve in curves] == [[1, 2, 4], [1, 2]]


def test_one_rank_is_a_base_even_if_no_other_trial_has_its_collectives() -> None:
    group = build_group((100.0, 1, "default"), (180.0, 2, "shared"))
    assert compute_efficiencies(group).value == pytest.approx([1.0, 0.9])


def test_without_a_trial_of_one_rank_the_narrowest_with_equal_collectives_is_the_base() -> None:
    group = build_group((150.0, 2, "default"), (180.0, 2, "shared"), (324.0, 4, "shared"))
    values = compute_efficiencies(group).value
    assert math.isnan(values[0])
    assert values[1:] == pytest.approx([1.0, 0.9])
