"""The table of what reorders cost."""

import dataclasses
from typing import Any

import pytest
from tests.report.sample_trials import group_of, trial

from corewise.report.reorders import build_reorder_table


def measured(
    rate: float | list[float], memory_format: str, reorders: str, problem: str = "pytorch-cpus:1", **more: Any
) -> Any:
    params = {
        "workload": "convolution", "mode": "infer", "batch": 1, "memory_format": memory_format,
        "args.reorders": reorders, "args.problem": problem,
    }  # fmt: skip
    return trial(rate, params=params, **more)


def rows_of(*trials: Any) -> list[dict[str, Any]]:
    """The rows of the table, each by the keys of its columns."""
    table = build_reorder_table(group_of(*trials))
    assert table is not None
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def test_each_step_with_reorders_is_paired_with_every_comparable_kernel() -> None:
    rows = rows_of(
        measured(10, "contiguous", "included"),
        measured(8, "blocked", "included"),
        measured(16, "channels_last", "excluded"),
        measured(20, "blocked", "excluded"),
        measured(5, "contiguous", "included", "pytorch-cpus:2"),
        measured(4, "channels_last", "excluded", "pytorch-cpus:2"),
    )
    found = {
        (row["args.problem"], row["layout"], row["alone_layout"]): pytest.approx(row["tax"], rel=1e-3) for row in rows
    }
    assert found == {
        ("pytorch-cpus:1", "contiguous", "channels_last"): 0.6,
        ("pytorch-cpus:1", "contiguous", "blocked"): 1.0,
        # It is paired with its own layout only, so nothing is picked.
        ("pytorch-cpus:1", "blocked", "blocked"): 1.5,
        ("pytorch-cpus:2", "contiguous", "channels_last"): -0.2,
    }
    # It is the same throughput as in the other tables.
    assert [row["whole"] for row in rows] == [8, 10, 10, 5]


def test_a_tax_has_the_interval_of_its_pair() -> None:
    (row,) = rows_of(measured(10, "contiguous", "included"), measured(20, "blocked", "excluded"))
    assert row["tax_low"] < row["tax"] < row["tax_high"]
    assert row["tax_low"] > 0.9
    assert "doubt" not in row


def test_noise_is_not_reported_as_a_tax() -> None:
    noisy = [6.0, 14.0, 9.0, 11.0, 10.0]
    (row,) = rows_of(measured(noisy, "contiguous", "included"), measured(11, "blocked", "excluded"))
    assert row["tax_low"] < 0 < row["tax_high"]
    assert row["doubt"] == "no significant difference"


def test_a_single_run_has_no_interval_and_says_so() -> None:
    (row,) = rows_of(measured([10.0], "contiguous", "included"), measured([20.0], "blocked", "excluded"))
    assert (row["doubt"], "tax_low" in row) == ("too few runs", False)


@pytest.mark.parametrize("disturbed", ["included", "excluded"])
def test_a_disturbed_trial_marks_its_row(disturbed: str) -> None:
    trials = [measured(10, "contiguous", "included"), measured(20, "blocked", "excluded")]
    for i, each in enumerate(trials):
        if each.params["args.reorders"] == disturbed:
            runs = tuple({**run, "disturbances": ["another process ran"]} for run in each.runs)
            trials[i] = dataclasses.replace(each, runs=runs)
    (row,) = rows_of(*trials)
    assert row["disturbed"] is True


def test_benchdnns_mean_and_best_are_listed_with_the_kernel_alone() -> None:
    figures = {"benchdnn_avg_s": 0.04, "benchdnn_min_s": 0.02}
    alone = measured(20, "blocked", "excluded", metrics=figures)
    (row,) = rows_of(measured(10, "contiguous", "included"), alone)
    assert (row["benchdnn_avg_s"], row["benchdnn_min_s"]) == (25.0, 50.0)


def test_without_both_settings_there_is_no_table() -> None:
    assert build_reorder_table(group_of(measured(10, "contiguous", "included"))) is None
    alone = group_of(measured(10, "blocked", "excluded"), measured(9, "channels_last", "excluded"))
    assert build_reorder_table(alone) is None
    apart = group_of(
        measured(10, "contiguous", "included", "pytorch-cpus:1"),
        measured(9, "channels_last", "excluded", "pytorch-cpus:2"),
    )
    assert build_reorder_table(apart) is None
