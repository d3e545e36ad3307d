"""Kernels in reports: what of their work is done in a second."""

from made_trials import group_of, trial

from corewise.report.phrases import rate_unit
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
