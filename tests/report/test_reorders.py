"""The table of what reorders cost."""

import dataclasses
from typing import Any

import pytest
from made_trials import group_of, trial

from corewise.report.reorders import reorder_table


def measured(rate: float, memory_format: str, reorders: str, problem: str = "pytorch-cpus:1") -> Any:
    params = {
        "workload": "convolution", "mode": "infer", "batch": 1, "memory_format": memory_format,
        "args.reorders": reorders, "args.problem": problem,
    }  # fmt: skip
    return trial(rate, params=params)


def test_each_step_with_reorders_stands_beside_the_fastest_kernel_alone() -> None:
    group = group_of(
        measured(10, "contiguous", "included"),
        measured(8, "blocked", "included"),
        measured(16, "channels_last", "excluded"),
        measured(20, "blocked", "excluded"),
        measured(5, "contiguous", "included", "pytorch-cpus:2"),
        measured(4, "channels_last", "excluded", "pytorch-cpus:2"),
    )
    table = reorder_table(group)
    assert table is not None
    found = {(row[0], row[1]): (row[4], pytest.approx(row[5], rel=1e-3)) for row in (r for r in table.rows)}
    assert found == {
        ("pytorch-cpus:1", "contiguous"): ("blocked", 1.0),
        ("pytorch-cpus:1", "blocked"): ("blocked", 1.5),
        ("pytorch-cpus:2", "contiguous"): ("channels_last", -0.2),
    }


def test_benchdnns_time_stands_beside_the_kernel_alone() -> None:
    alone = measured(20, "blocked", "excluded")
    alone = dataclasses.replace(alone, metrics={**alone.metrics, "benchdnn_avg_s": 0.04})
    table = reorder_table(group_of(measured(10, "contiguous", "included"), alone))
    assert table is not None
    assert (table.columns[-1].title, table.rows[0][-1]) == ("benchdnn", 0.04)


def test_without_both_kinds_there_is_no_table() -> None:
    assert reorder_table(group_of(measured(10, "contiguous", "included"))) is None
    alone = group_of(measured(10, "blocked", "excluded"), measured(9, "channels_last", "excluded"))
    assert reorder_table(alone) is None
    apart = group_of(
        measured(10, "contiguous", "included", "pytorch-cpus:1"),
        measured(9, "channels_last", "excluded", "pytorch-cpus:2"),
    )
    assert reorder_table(apart) is None
