"""Changing thread widths against fixed ones: figures, tables, and one step core by core."""

import json
import re
import warnings
from typing import Any

import altair as alt
import pytest
from tests.report.dynamic.sample_dynamic_trials import NUM_CORES, changing, fixed, fixed_grid, plan_facts
from tests.report.sample_trials import scaling, trial

from corewise.analysis.groups import Group, RecordSource, group_records
from corewise.analysis.ranking import rank_trials
from corewise.analysis.thread_plans import find_thread_plan, parse_thread_plan
from corewise.report.charts.widths import build_timeline_chart
from corewise.report.dynamic.dynamic_part import DynamicTrials, build_dynamic_part, find_dynamic_trials
from corewise.report.dynamic.dynamic_tables import build_graph_table, compute_spread
from corewise.report.figures import render_chart
from corewise.report.publications.published_figures import find_shipped_folder, load_publications
from corewise.report.report_builder import ReportRequest, build_report_from
from corewise.report.report_model import Table
from corewise.study.record import Record

PUBLICATIONS = load_publications(find_shipped_folder())


def group_of(*records: Record) -> Group:
    whole = {record.trial_id: record for record in records}
    source = RecordSource(label="store", records=records, read_full_records=lambda ids: [whole[each] for each in ids])
    [group] = group_records([source])
    return group


def both(*records: Record) -> DynamicTrials:
    group = group_of(*records)
    found = find_dynamic_trials(group, rank_trials(group))
    assert found is not None
    return found


def tables(*records: Record) -> dict[str, Table]:
    group = group_of(*records)
    part = build_dynamic_part(group, rank_trials(group), PUBLICATIONS)
    return {table.key: table for table in part.tables}


def cells(table: Table) -> dict[str, list[Any]]:
    return {str(row[0]): list(row[1:]) for row in table.rows}


def test_a_fixed_setting_counts_once_at_its_best() -> None:
    found = both(*fixed_grid(), changing(), changing(9000.0, threads=8))
    assert len(found.fixed) == len(found.settings) == 25
    assert all(found.group.points[i]["wait_policy"] == "default" for i in found.fixed)
    assert found.describe_setting(found.best_fixed) == "8×2, wait policy default"
    assert (found.num_beaten, found.share_beaten) == (25, 1.0)
    assert found.gain.value == pytest.approx(11_300 / found.group.rate[found.best_fixed])


def test_the_untuned_mode_is_the_one_with_all_threads_not_the_fastest() -> None:
    found = both(*fixed_grid(), changing(3000.0), changing(9000.0, threads=8))
    assert found.group.points[found.untuned]["threads"] == NUM_CORES
    assert found.group.points[found.best]["threads"] == 8
    slower = [i for i in found.fixed if found.group.rate[i] < 3000]
    assert found.num_beaten == len(slower) < 25


def test_one_core_has_no_widths_that_change() -> None:
    found = both(*fixed_grid(), changing(3000.0), changing(9000.0, threads=1))
    assert found.group.points[found.best]["threads"] == NUM_CORES


def test_other_gains_than_widths_are_named() -> None:
    facts = {"chosen": "moldable", "tasks": [], "timeline": [], "num_packed": 1, "num_own_lstms": 64}
    group = group_of(*fixed_grid(), changing(facts=facts))
    sentence = build_dynamic_part(group, rank_trials(group), PUBLICATIONS).sentences[-1]
    assert "1 layer with packed weights and 64 calls of row-parallel LSTMs" in sentence


@pytest.mark.parametrize("records", [fixed_grid(), [changing(), changing(900.0, threads=8)], scaling()])
def test_there_is_no_part_if_one_side_is_missing(records: list[Record]) -> None:
    group = group_of(*records)
    part = build_dynamic_part(group, rank_trials(group), PUBLICATIONS)
    assert (part.sentences, part.settings, part.timeline, part.tables) == ((), None, None, ())


def test_published_figures_are_those_of_its_tables() -> None:
    table = cells(tables(*fixed_grid(), changing())["dynamic"])
    assert {what: figures[1] for what, figures in table.items() if figures[1]} == {
        "one thread, 1×1": "238.72 s (1×1)",
        "best fixed setting": "25.61 s (2×24)",
        "best with changing widths": "22.97 s (4×48)",
        "throughput, best over best": "1.11×",
        "less time, best against best": "10 %",
        "changing widths, untuned": "32.91 s (16×64)",
        "fixed settings beaten by it": "33 of 45 (73.3 %) by its tables; stated: 77.8 %",
    }
    assert table["fixed settings beaten by it"][0] == "25 of 25 (100.0 %)"
    assert table["lower bound of its tasks"][0] == "33.0 ms, 93 % reached"


def test_the_spread_is_computed_as_in_the_publication() -> None:
    mean, deviation, variation, margin = compute_spread([32.67, 33.88, 33.05])
    assert (round(mean, 1), round(deviation, 2)) == (33.2, 0.51)
    assert (round(variation, 2), round(margin, 2)) == (0.02, 0.29)
    rows = cells(tables(*fixed_grid(), changing())["dynamic-spread"])
    assert rows["yours: best with changing widths"][-1] == 5
    assert rows["Llopart Font 2023: no forks, no thread settings"] == [33.2, 0.51, 0.02, 0.29, 3]


def test_savings_state_their_assumptions_and_their_doubt() -> None:
    table = tables(*fixed_grid(), changing())["dynamic-savings"]
    saved = 1 - both(*fixed_grid(), changing()).group.rate.max() ** -1 * 7716.0
    grams = re.match(r"([\d.]+) g", cells(table)["carbon dioxide of that"][0])
    assert grams is not None
    assert float(grams[1]) == pytest.approx(170 * 0.296 * saved, rel=0.02)
    for text in ("170 W", "0.296 g", "5,670", "none of this was measured here"):
        assert text in table.caption
    alike = tables(fixed(1, 1, 900.0), fixed(2, 2, 1000.0), changing(1001.0))
    assert "no saving is shown" in alike["dynamic-savings"].caption


def test_without_publications_ones_own_figures_stand_alone() -> None:
    group = group_of(*fixed_grid(), changing())
    part = build_dynamic_part(group, rank_trials(group), ())
    found = {table.key: table for table in part.tables}
    assert list(found) == ["dynamic", "dynamic-spread", "dynamic-graph"]
    assert [column.key for column in found["dynamic"].columns] == ["what", "yours"]


def test_the_graph_lists_dependencies_and_widths() -> None:
    rows = tables(*fixed_grid(), changing())["dynamic-graph"].rows
    assert list(rows[8][:4]) == [8, "cat_0", "0, 1", 4]
    assert list(rows[12][:4]) == [12, "stack, sum_1", "8, 9, 10, 11", NUM_CORES]
    assert rows[0][4:6] == [1e-4, 0.03]


def test_the_timeline_has_a_bar_for_each_task_on_its_cores() -> None:
    found = both(*fixed_grid(), changing())
    chart = build_timeline_chart(found, find_thread_plan(found.group, found.best))
    assert chart is not None
    rows = chart.spec["datasets"]["rows"]
    assert len(rows) == 13
    assert {(row["first"], row["last"]) for row in rows if row["series"] == "lstm"} == {
        (first, first + 2) for first in range(0, 16, 2)
    }
    assert [row["width"] for row in rows if row["series"] == "stack"] == [16]
    assert min(row["start"] for row in rows) == 0
    assert "moldable, native executor" in chart.caption
    assert chart.alt.startswith("Timeline of 13 tasks on 16 cores over 37.4 ms")


def test_a_training_step_is_drawn_with_both_passes() -> None:
    facts = plan_facts()
    back = [
        {**bar, "start_s": 0.1 - bar["end_s"], "end_s": 0.1 - bar["start_s"], "is_backward": True}
        for bar in facts["timeline"]
    ]
    facts["timeline"] += back
    found = both(*fixed_grid(), changing(facts=facts))
    plan = find_thread_plan(found.group, found.best)
    chart = build_timeline_chart(found, plan)
    assert chart is not None
    rows = chart.spec["datasets"]["rows"]
    assert sum(row["task"].endswith(", backward") for row in rows) == len(rows) / 2 == 13
    assert chart.alt.startswith("Timeline of 13 tasks on 16 cores over 99.8 ms")
    graph = build_graph_table(found, plan)
    assert graph is not None
    assert graph.rows[0][4:6] == [1e-4, 0.03]


def test_cores_that_do_not_lie_together_are_drawn_apart() -> None:
    facts = plan_facts()
    facts["timeline"][0]["cpus"] = [0, 1, 5]
    found = both(*fixed_grid(), changing(facts=facts))
    chart = build_timeline_chart(found, find_thread_plan(found.group, found.best))
    assert chart is not None
    rows = [row for row in chart.spec["datasets"]["rows"] if row["task"] == "zeros_0, lstm_0"]
    assert [(row["first"], row["last"]) for row in rows] == [(0, 2), (5, 6)]


def test_plain_execution_has_no_timeline_and_a_reason() -> None:
    group = group_of(*fixed_grid(), changing(facts={"chosen": "plain", "reason": "it holds a nested graph"}))
    part = build_dynamic_part(group, rank_trials(group), PUBLICATIONS)
    assert part.timeline is None
    assert "The plan for it is plain execution: it holds a nested graph." in part.sentences


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"chosen": "moldable", "tasks": [{"name": "a"}], "timeline": [{"task": 0}]},
        {"chosen": "moldable", "tasks": [{"name": "a", "width": "wide"}]},
        {"chosen": "moldable", "tasks": 3},
        {"chosen": "x", "tasks": [{"name": "a"}], "timeline": [{"task": 0, "cpus": [1], "start_s": 2, "end_s": 2}]},
    ],
)
def test_facts_that_fit_no_plan_are_left_out(facts: dict[str, Any]) -> None:
    assert parse_thread_plan(facts) is None


def test_a_bar_of_an_unknown_task_is_left_out() -> None:
    facts = plan_facts()
    facts["timeline"].append({"task": 99, "cpus": [0], "start_s": 0.0, "end_s": 1.0})
    shown = parse_thread_plan(json.loads(json.dumps(facts)))
    assert shown is not None
    assert len(shown.bars) == 13
    assert 0.8 < shown.busy_share < 0.95


def test_the_report_sets_maps_side_by_side_and_says_the_gain() -> None:
    records = [*fixed_grid(), changing()]
    whole = {record.trial_id: record for record in records}
    source = RecordSource(label="store", records=records, read_full_records=lambda ids: [whole[each] for each in ids])
    [part] = build_report_from([source], ask=ReportRequest(publications=PUBLICATIONS)).studies
    ends = [chart.key.rpartition("infer-")[2] for chart in part.charts[:4]]
    assert ends == ["fixed-settings", "published-static-grid", "published-dynamic-grid", "timeline"]
    assert any("1.46× (1.46 to 1.47) the throughput of the best fixed setting" in s for s in part.answers)
    assert any("faster than 25 of 25 fixed settings (100 %)" in s for s in part.answers)
    for chart in (part.charts[0], part.charts[3]):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            alt.LayerChart.from_dict(dict(chart.spec), validate=True)
        assert render_chart(chart, "svg").startswith(b"<svg")
        assert chart.caption.endswith(".")
        assert not re.search(r"labelColor|titleColor|background", json.dumps(chart.spec, allow_nan=False))


def test_a_fixed_setting_without_differences_is_not_named() -> None:
    params = {**changing().params, "execution": "eager"}
    group = group_of(changing(), trial(7_000.0, params=params, study="papers/dynamic-threads"))
    part = build_dynamic_part(group, rank_trials(group), PUBLICATIONS)
    sentences = [sentence for sentence in part.sentences if "the best fixed setting" in sentence]
    assert sentences
    assert not any("()" in sentence for sentence in sentences)
