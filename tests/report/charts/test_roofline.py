"""The roofline: trials under the ceilings of their machines, and what is said of them."""

import math
import re
import warnings
from dataclasses import replace
from typing import Any

import altair as alt
import pytest
from tests.report.charts.sample_rooflines import many_roofed, roofed
from tests.report.sample_trials import MACHINE, trial

from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.study_evidence import StudyEvidence
from corewise.analysis.findings.study_findings import collect_findings
from corewise.analysis.groups import RecordSource, group_records
from corewise.analysis.ranking import rank_trials
from corewise.report.charts.roofline import MAX_POINTS, MAX_ROOFS, build_roofline_chart, find_dots
from corewise.report.figures import render_chart
from corewise.report.report_builder import build_report_from
from corewise.report.report_model import Chart
from corewise.study.record import IN_CACHE_NOTE, Record


def chart(*records: Record) -> Chart:
    found = build_roofline_chart("a-study", "a-study", group_records([RecordSource(label="store", records=records)]))
    assert found is not None
    return found


def rows(drawn: Chart, name: str = "rows") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = drawn.spec["datasets"][name]
    return found


def findings(*records: Record) -> list[Finding]:
    groups = group_records([RecordSource(label="store", records=records)])
    studied = StudyEvidence("a-study", "store", [(group, rank_trials(group)) for group in groups])
    return [each for each in collect_findings(studied) if "attains" in each.title]


def test_the_chart_is_a_valid_specification_that_can_be_drawn() -> None:
    drawn = chart(*many_roofed())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alt.LayerChart.from_dict(dict(drawn.spec), validate=True)
    assert render_chart(drawn, "svg").startswith(b"<svg")
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


def test_points_show_their_share_limit_and_ceiling() -> None:
    low, high = rows(chart(roofed(2.0, 0.5), roofed(300.0, 0.913)))
    assert (low["limit"], low["share"]) == ("memory", "50 %")
    assert (high["limit"], high["share"]) == ("computing", "91.3 %")
    assert low["y"] == pytest.approx(40.0)
    assert high["roof"].startswith("float32, 4 threads")


def legends(drawn: Chart) -> list[str]:
    """Titles of what colours mean, where a legend tells it."""
    encoded = [layer["encoding"].get("color") or {} for layer in drawn.spec["layer"]]
    return [each["title"] for each in encoded if each.get("legend")]


def test_several_workloads_are_coloured_one_is_coloured_by_the_first_axis_that_varies() -> None:
    both = chart(roofed(2.0, 0.5), roofed(0.1, 0.9, workload="stream"))
    assert len({row["series"] for row in rows(both)}) == 2
    assert legends(both) == ["workload"]
    alone = chart(roofed(2.0, 0.5), roofed(2.0, 0.5, dtype="bfloat16"))
    assert {row["series"] for row in rows(alone)} == {"float32", "bfloat16"}
    by_threads = chart(roofed(2.0, 0.5, 1), roofed(2.0, 0.5, 2), roofed(2.0, 0.5, 8))
    assert [row["series"] for row in rows(by_threads)] == ["1 thread", "2 threads", "8 threads"]
    assert legends(by_threads) == ["threads"]
    assert legends(chart(roofed(2.0, 0.5))) == []


def test_small_rates_are_plain_numbers() -> None:
    axis = chart(roofed(0.001, 0.01, 1), roofed(300.0, 0.9, 1)).spec["layer"][0]["encoding"]["y"]["axis"]
    # With an SI prefix, 0.1 would be 100m.
    assert "s" not in axis["format"]


def test_the_label_of_the_highest_ceiling_lies_below_the_frame() -> None:
    for records in ([roofed(2.0, 0.5)], many_roofed(), [roofed(1e-3, 1e-3), roofed(300.0, 0.9)]):
        drawn = chart(*records)
        low, high = drawn.spec["layer"][0]["encoding"]["y"]["scale"]["domain"]
        top = max(row["y"] for row in rows(drawn, "roofs"))
        above = math.log(high / top) / math.log(high / low) * drawn.spec["height"]
        # The label lies 7 px above the line and is 10 px high.
        assert above > 7 + 10


def test_formats_of_one_rate_share_a_roof_and_its_label() -> None:
    drawn = rows(chart(roofed(2.0, 0.5, dtype="complex128"), roofed(2.0, 0.5, dtype="float64")), "roofs")
    assert {row["label"].partition(",")[0] for row in drawn} == {"float64 and complex128"}
    assert len(drawn) == 3
    alone = rows(chart(roofed(2.0, 0.5, dtype="complex128")), "roofs")
    assert alone[0]["label"].startswith("complex128, 4 threads")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"workload": "resnet50", "device": "cuda"}, "tf32"),
        ({"workload": "convolution", "device": "cuda"}, "tf32"),
        ({"workload": "convolution", "device": "cuda", "runtime": "jax"}, "float32"),
        ({"device": "cuda"}, "float32"),
        ({"workload": "resnet50", "device": "cpu"}, "float32"),
        ({"device": "cpu", "float32_precision": "bf16"}, "bfloat16"),
        ({"device": "cuda", "float32_precision": "tf32"}, "tf32"),
    ],
)
def test_a_roof_is_named_after_the_format_whose_rate_it_is(params: dict[str, Any], expected: str) -> None:
    assert rows(chart(roofed(2.0, 0.5, **params)), "roofs")[0]["label"].startswith(f"{expected}, ")


def test_ceilings_of_a_busy_machine_are_reported_with_their_date() -> None:
    measured = {"ceilings_measured_at": 1794736800.0}
    quiet, busy = (
        replace(made, metrics={**made.metrics, **measured, "ceilings_busy": value})
        for made, value in ((roofed(2.0, 0.5, 1), 0.0), (roofed(2.0, 0.5, 2), 1.0))
    )
    for records, message in (
        ([quiet], None),
        ([busy], "The ceilings were measured on a busy machine and are too low"),
        ([quiet, busy], "The ceilings of 1 trial were measured on a busy machine and are too low"),
    ):
        [part] = build_report_from([RecordSource(label="store", records=records)]).studies
        method = dict(part.method)["ceilings"]
        assert "on 2026-11-15" in method
        for text in (chart(*records).caption, method):
            assert (message or "busy") in text if message else "busy" not in text


def test_all_trials_with_a_fraction_are_counted_those_without_flops_too() -> None:
    copies = [
        trial(9.0, params={"workload": "stream", "threads": n}, metrics={"fraction_of_ceiling": 0.5}) for n in (1, 2)
    ]
    [part] = build_report_from(
        [RecordSource(label="store", records=[roofed(2.0, 0.5, workload="stream"), *copies])]
    ).studies
    assert dict(part.method)["ceilings"].startswith("of 3 trials")


def test_an_impossible_date_is_left_out() -> None:
    made = roofed(2.0, 0.5)
    for value in (-1.0, 1e18, float("nan")):
        odd = replace(made, metrics={**made.metrics, "ceilings_measured_at": value})
        [part] = build_report_from([RecordSource(label="store", records=[odd])]).studies
        assert dict(part.method)["ceilings"].endswith("had measured them")


def test_without_ceilings_there_is_no_chart_and_omitted_trials_are_counted() -> None:
    groups = group_records([RecordSource(label="store", records=[trial(20.0)])])
    assert build_roofline_chart("s", "s", groups) is None
    copy = trial(9.0, params={"workload": "gemm"}, metrics={"fraction_of_ceiling": 0.5})
    assert "Not shown: 1 trial without flops or without a ceiling" in chart(roofed(2.0, 0.5), copy).caption


def test_damaged_metrics_draw_nothing() -> None:
    record = roofed(2.0, 0.5)
    for name in ("gflop_per_s", "flops_per_byte", "ceiling_gbyte_per_s"):
        for value in (float("nan"), -1.0, 0.0, float("inf"), None, "x"):
            metrics: Any = {**record.metrics, name: value}
            broken = trial(5.0, params=dict(record.params), metrics=metrics)
            assert find_dots(group_records([RecordSource(label="s", records=[broken])])) == []


def test_very_many_trials_are_thinned_and_roofs_cut_and_it_is_said() -> None:
    many = [roofed(0.1 + i / 7, 0.5, t) for i in range(200) for t in (1, 2, 4, 8)]
    drawn = chart(*many)
    assert len(rows(drawn)) == MAX_POINTS
    assert f"{MAX_POINTS} of 800 trials are shown" in drawn.caption
    assert len(rows(drawn, "roofs")) <= 3 * MAX_ROOFS


def test_each_machine_has_separate_roofs() -> None:
    other = {**MACHINE, "host_class": "bbbb2222", "microarchitecture": "zen4"}
    here = roofed(2.0, 0.5)
    there = trial(5.0, params=dict(here.params), metrics=dict(here.metrics), machine=other)
    labels = {row["label"] for row in rows(chart(here, there), "roofs")}
    assert len(labels) == 2
    assert any(label.startswith("zen4, 16 cores, float32") for label in labels)


def test_a_report_draws_the_roofline_once_and_tables_have_the_share() -> None:
    made = build_report_from([RecordSource(label="store", records=many_roofed())])
    [part] = made.studies
    assert len([each for each in part.charts if each.key.endswith("roofline")]) == 1
    for table in part.tables:
        assert "fraction_of_ceiling" in [column.key for column in table.columns]
    assert dict(part.method)["ceilings"].startswith("of 27 trials")


def test_a_report_without_ceilings_says_how_to_have_them() -> None:
    made = build_report_from([RecordSource(label="store", records=[trial(20.0, metrics={"gflop_per_s": 5.0})])])
    assert "corewise doctor --ceilings" in dict(made.studies[0].method)["ceilings"]
    assert not [each for each in made.studies[0].charts if "roofline" in each.key]


@pytest.mark.parametrize(
    ("intensity", "reached", "message"),
    [
        (2.0, 0.12, "reaches 12 % of what this machine attains at this intensity: memory-bound"),
        (300.0, 0.2, "reaches 20 % of what this machine attains at this intensity: compute-bound"),
        (300.0, 0.95, "reaches 95 % of what this machine attains at this intensity: compute-bound"),
        (2.0, 0.004, "reaches less than 1 % of what"),
        (2.0, 0.7, None),
    ],
)
def test_what_is_far_off_or_near_is_found(intensity: float, reached: float, message: str | None) -> None:
    found = findings(roofed(intensity, reached), roofed(intensity, reached / 2, 1))
    assert [message in each.title for each in found if message] == ([True] if message else [])
    for each in found:
        assert "flops per byte" in each.evidence
        assert each.remedy


def test_the_memory_ceiling_does_not_apply_to_data_that_fit_the_cache() -> None:
    resident = replace(roofed(0.1, 0.95), notes=[IN_CACHE_NOTE])
    assert findings(resident, roofed(0.1, 0.4, 1)) == []


def test_without_ceilings_nothing_is_found() -> None:
    assert findings(trial(20.0), trial(10.0, params={"threads": 2})) == []
