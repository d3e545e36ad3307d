"""The roofline: trials under the ceilings of their machines, and what is said of them."""

import re
import warnings
from typing import Any

import altair as alt
import pytest
from made_roofs import many_roofed, roofed
from made_trials import MACHINE, trial

from corewise.report.charts.roofline import MAX_POINTS, MAX_ROOFS, dots_of, roofline_chart
from corewise.report.figures import rendered
from corewise.report.findings import findings_of
from corewise.report.gather import report_of
from corewise.report.groups import Source, groups_of
from corewise.report.model import Chart, Finding
from corewise.report.standing import standing_of
from corewise.report.studied import Studied
from corewise.spec.record import Record


def chart(*records: Record) -> Chart:
    found = roofline_chart("a-study", "a-study", groups_of([Source(label="store", records=records)]))
    assert found is not None
    return found


def rows(drawn: Chart, name: str = "rows") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = drawn.spec["datasets"][name]
    return found


def findings(*records: Record) -> list[Finding]:
    groups = groups_of([Source(label="store", records=records)])
    studied = Studied("a-study", "store", [(group, standing_of(group)) for group in groups])
    return [each for each in findings_of(studied) if "attains" in each.title]


def test_the_chart_is_a_valid_specification_that_can_be_drawn() -> None:
    drawn = chart(*many_roofed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alt.LayerChart.from_dict(dict(drawn.spec), validate=True)
    assert rendered(drawn, "svg").startswith(b"<svg")
    assert re.fullmatch(r"[a-z0-9-]+", drawn.key)
    assert drawn.caption.endswith(".")
    assert drawn.alt.endswith(".")


def test_a_roof_rises_with_the_bandwidth_to_the_ridge_and_is_flat_beyond() -> None:
    start, ridge, end = rows(chart(roofed(2.0, 0.5, 4), roofed(300.0, 0.9, 4)), "roofs")
    assert start["y"] == pytest.approx(40.0 * start["x"], rel=1e-4)
    assert (ridge["x"], ridge["y"]) == (10.0, 400.0)
    assert end["y"] == 400.0
    assert end["text"] == "float32, 4 threads: 400 Gflop/s, 40.0 GB/s"


def test_each_precision_and_width_has_a_roof_and_fewer_threads_a_lighter_one() -> None:
    drawn = rows(chart(*many_roofed()), "roofs")
    weights = {row["label"].partition(":")[0]: row["weight"] for row in drawn}
    assert weights["float32, 8 threads"] == weights["bfloat16, 8 threads"] == 1.0
    assert weights["float32, 1 thread"] < 0.5
    assert len(weights) == 9


def test_points_tell_their_share_what_limits_and_under_which_roof() -> None:
    low, high = rows(chart(roofed(2.0, 0.5), roofed(300.0, 0.913)))
    assert (low["limit"], low["share"]) == ("memory", "50 %")
    assert (high["limit"], high["share"]) == ("computing", "91.3 %")
    assert low["y"] == pytest.approx(40.0)
    assert high["roof"].startswith("float32, 4 threads")


def test_several_workloads_are_coloured_one_is_coloured_by_its_formats() -> None:
    both = rows(chart(roofed(2.0, 0.5), roofed(0.1, 0.9, workload="stream")))
    assert len({row["series"] for row in both}) == 2
    alone = rows(chart(roofed(2.0, 0.5), roofed(2.0, 0.5, dtype="bfloat16")))
    assert {row["series"] for row in alone} == {"float32", "bfloat16"}


def test_no_ceiling_no_chart_and_what_is_not_drawn_is_counted() -> None:
    groups = groups_of([Source(label="store", records=[trial(20.0)])])
    assert roofline_chart("s", "s", groups) is None
    copy = trial(9.0, params={"workload": "gemm"}, metrics={"fraction_of_ceiling": 0.5})
    assert "1 trial without flops or without a ceiling are not drawn" in chart(roofed(2.0, 0.5), copy).caption


def test_damaged_metrics_draw_nothing() -> None:
    record = roofed(2.0, 0.5)
    for name in ("gflop_per_s", "flops_per_byte", "ceiling_gbyte_per_s"):
        for value in (float("nan"), -1.0, 0.0, float("inf"), None, "x"):
            metrics: Any = {**record.metrics, name: value}
            broken = trial(5.0, params=dict(record.params), metrics=metrics)
            assert dots_of(groups_of([Source(label="s", records=[broken])])) == []


def test_very_many_trials_are_thinned_and_roofs_cut_and_it_is_said() -> None:
    many = [roofed(0.1 + i / 7, 0.5, t) for i in range(200) for t in (1, 2, 4, 8)]
    drawn = chart(*many)
    assert len(rows(drawn)) == MAX_POINTS
    assert f"{MAX_POINTS} of 800 trials are drawn" in drawn.caption
    assert len(rows(drawn, "roofs")) <= 3 * MAX_ROOFS


def test_machines_have_roofs_of_their_own() -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "microarchitecture": "zen4"}
    here = roofed(2.0, 0.5)
    there = trial(5.0, params=dict(here.params), metrics=dict(here.metrics), machine=other)
    labels = {row["label"] for row in rows(chart(here, there), "roofs")}
    assert len(labels) == 2
    assert any(label.startswith("zen4, 16 cores, float32") for label in labels)


def test_a_report_draws_the_roofline_once_and_tables_have_the_share() -> None:
    made = report_of([Source(label="store", records=many_roofed())])
    [part] = made.studies
    assert len([each for each in part.charts if each.key.endswith("roofline")]) == 1
    for table in part.tables:
        assert "fraction_of_ceiling" in [column.key for column in table.columns]
    assert dict(part.method)["ceilings"].startswith("of 27 trials")


def test_a_report_without_ceilings_says_how_to_have_them() -> None:
    made = report_of([Source(label="store", records=[trial(20.0, metrics={"gflop_per_s": 5.0})])])
    assert "corewise doctor --ceilings" in dict(made.studies[0].method)["ceilings"]
    assert not [each for each in made.studies[0].charts if "roofline" in each.key]


@pytest.mark.parametrize(
    ("intensity", "reached", "told"),
    [
        (2.0, 0.12, "reaches 12 % of what this machine attains at this intensity: memory-bound"),
        (300.0, 0.2, "reaches 20 % of what this machine attains at this intensity: compute-bound"),
        (300.0, 0.95, "reaches 95 % of what this machine attains at this intensity: compute-bound"),
        (2.0, 0.004, "reaches less than 1 % of what"),
        (2.0, 0.7, None),
    ],
)
def test_what_is_far_off_or_near_is_found(intensity: float, reached: float, told: str | None) -> None:
    found = findings(roofed(intensity, reached), roofed(intensity, reached / 2, 1))
    assert [told in each.title for each in found if told] == ([True] if told else [])
    for each in found:
        assert "flops per byte" in each.evidence
        assert each.remedy


def test_without_ceilings_nothing_is_found() -> None:
    assert findings(trial(20.0), trial(10.0, params={"threads": 2})) == []
