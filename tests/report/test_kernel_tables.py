"""Kernels in reports: what of their work is done in a second."""

import pytest
from tests.report.sample_trials import group_of, trial

from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.phrases import describe_machine_rate, name_rate_unit
from corewise.analysis.ranking import rank_trials
from corewise.report.answers import describe_group
from corewise.report.tables import build_results_table


def test_a_kernels_table_has_bytes_and_operations_of_a_second() -> None:
    metrics = {"gflop_per_s": 1.5, "gbyte_per_s": 16.1, "best_gbyte_per_s": 18.2}
    group = group_of(trial(20.0, params={"workload": "stream"}, metrics=metrics, work={}))
    table = build_results_table(group, rank_trials(group), compute_efficiencies(group))
    assert table is not None
    shown = dict(zip((column.title for column in table.columns), table.rows[0], strict=True))
    assert (shown["Gflop/s"], shown["GB/s"], shown["best GB/s"]) == (1.5, 16.1, 18.2)
    assert name_rate_unit(group) == "steps/s"


def test_a_models_table_is_without_them() -> None:
    group = group_of(trial(20.0))
    table = build_results_table(group, rank_trials(group), compute_efficiencies(group))
    assert table is not None
    assert not {"Gflop/s", "GB/s", "best GB/s"} & {column.title for column in table.columns}


@pytest.mark.parametrize(
    ("gflop_per_s", "rate"), [(1.5, "16.1 GB/s"), (161.0, "161 Gflop/s"), (float("nan"), "16.1 GB/s")]
)
def test_a_kernels_rate_is_given_in_its_limiting_unit(gflop_per_s: float, rate: str) -> None:
    metrics = {"gflop_per_s": gflop_per_s, "gbyte_per_s": 16.1}
    group = group_of(trial(20.0, params={"workload": "stream"}, metrics=metrics, work={}))
    assert describe_machine_rate(group, 0) == rate
    headline = describe_group(group, rank_trials(group))[0]
    assert f"20.0 steps/s (95 % interval 19.9–20.1) = {rate} with" in headline


def test_a_models_rate_is_not() -> None:
    assert describe_machine_rate(group_of(trial(20.0)), 0) == ""
