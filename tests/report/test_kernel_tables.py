"""Kernels in reports: what of their work is done in a second."""

import pytest
from made_trials import group_of, trial

from corewise.report.answers import answers_of
from corewise.report.phrases import machine_rate, rate_unit
from corewise.report.standing import efficiencies_of, standing_of
from corewise.report.tables import results_table


def test_a_kernels_table_has_bytes_and_operations_of_a_second() -> None:
    metrics = {"gflop_per_s": 1.5, "gbyte_per_s": 16.1, "best_gbyte_per_s": 18.2}
    group = group_of(trial(20.0, params={"workload": "stream"}, metrics=metrics, work={}))
    table = results_table(group, standing_of(group), efficiencies_of(group))
    assert table is not None
    shown = dict(zip((column.title for column in table.columns), table.rows[0], strict=True))
    assert (shown["Gflop/s"], shown["GB/s"], shown["best GB/s"]) == (1.5, 16.1, 18.2)
    assert rate_unit(group) == "steps/s"


def test_a_models_table_is_without_them() -> None:
    group = group_of(trial(20.0))
    table = results_table(group, standing_of(group), efficiencies_of(group))
    assert table is not None
    assert not {"Gflop/s", "GB/s", "best GB/s"} & {column.title for column in table.columns}


@pytest.mark.parametrize(
    ("gflop_per_s", "told"), [(1.5, "16.1 GB/s"), (161.0, "161 Gflop/s"), (float("nan"), "16.1 GB/s")]
)
def test_a_kernels_rate_is_told_in_what_it_is_bound_by(gflop_per_s: float, told: str) -> None:
    metrics = {"gflop_per_s": gflop_per_s, "gbyte_per_s": 16.1}
    group = group_of(trial(20.0, params={"workload": "stream"}, metrics=metrics, work={}))
    assert machine_rate(group, 0) == told
    assert f"20.0 steps/s (19.9 to 20.1) = {told} with" in answers_of(group, standing_of(group))[0]


def test_a_models_rate_is_not() -> None:
    assert machine_rate(group_of(trial(20.0)), 0) == ""
