"""The part of a report about scaling: sentences, charts, table, finding and published efficiencies."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from tests.analysis.scaling.made_clusters import Cluster, train_on, without_parts
from tests.report.sample_trials import scaling, write_store

from corewise.analysis.result_tables import build_result_tables
from corewise.cli.render.trial_tables import draw_tables
from corewise.report.report_builder import build_report
from corewise.report.report_model import Report
from corewise.study.record import Record

NODES = (1, 2, 4, 8, 16)
SLOW_LINK = Cluster(link_bytes_per_s=4e8, hidden=0.4)
OF_NETWORK = "bandwidth of the network between nodes"


def report_of(folder: Path, records: Sequence[Record]) -> Report:
    return build_report([write_store(folder / "store", *records)])


def draw(records: Sequence[Record]) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        draw_tables(console, build_result_tables(records))
    return captured.get()


@pytest.fixture(scope="module")
def slow_link(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(tmp_path_factory.mktemp("slow"), train_on(SLOW_LINK, NODES))


def test_the_headline_names_efficiency_base_and_cause(slow_link: Report) -> None:
    headline = slow_link.summary[0]
    assert "efficiency of 0.6" in headline
    assert "on 16 nodes against 1 node" in headline
    assert "weak scaling" in headline
    assert OF_NETWORK in headline


def test_throughput_efficiency_and_parts_have_charts_with_bounds_and_prediction(slow_link: Report) -> None:
    charts = {chart.title.partition(": ")[2]: chart for chart in slow_link.studies[0].charts}
    assert {"throughput against nodes", "efficiency against nodes", "time of a step against nodes"} <= set(charts)
    data = charts["throughput against nodes"].spec["datasets"]
    assert [row["x"] for row in data["rows"]] == list(NODES)
    assert [row["x"] for row in data["band"]] == [*NODES, 32, 64]
    assert all(row["low"] < row["y"] < row["high"] for row in data["band"])
    assert data["ideal"][-1]["y"] == pytest.approx(64 * data["rows"][0]["y"])
    assert {row["y"] for row in charts["efficiency against nodes"].spec["datasets"]["ideal"]} == {1.0}


def test_the_bars_stack_the_parts_of_each_step(slow_link: Report) -> None:
    [chart] = [chart for chart in slow_link.studies[0].charts if "time of a step" in chart.title]
    rows = chart.spec["datasets"]["rows"]
    at_16 = {row["series"]: row["y"] for row in rows if row["x"] == "16"}
    assert at_16["exposed communication"] == pytest.approx(0.288, rel=0.05)
    assert at_16["compute"] == pytest.approx(0.5, rel=0.05)
    assert "exposed communication" in chart.alt


def test_the_table_holds_measured_and_predicted_counts(slow_link: Report) -> None:
    [table] = [table for table in slow_link.studies[0].tables if "scaling over nodes" in table.title]
    keys = [column.key for column in table.columns]
    assert [row[keys.index("count")] for row in table.rows] == [*NODES, 32, 64]
    assert table.rows[-1][keys.index("rate")] is None
    assert table.rows[-1][keys.index("predicted")] is not None


def test_the_finding_has_evidence_and_a_command(slow_link: Report) -> None:
    [finding] = [finding for finding in slow_link.findings if OF_NETWORK in finding.title]
    assert "exposed communication" in finding.evidence
    assert "MB/s" in finding.evidence
    assert "--set nodes=1,16 --set batch=64,128" in finding.remedy


def test_published_efficiencies_over_nodes_are_the_same_quantity(slow_link: Report) -> None:
    [chart] = [chart for chart in slow_link.studies[0].charts if "published" in chart.title]
    assert "different quantities" not in chart.caption
    assert {row["series"] for row in chart.spec["datasets"]["published"]} >= {"Skylake, synthetic images"}


@pytest.mark.parametrize(
    ("workload", "figure"),
    [
        ("resnet34", "data-parallel training on 128 nodes"),
        ("wide_resnet101_2", "data-parallel training on 128 nodes"),
        ("alexnet", "shape and batch used on each node when scaling out"),
    ],
)
def test_the_papers_figures_over_nodes_stand_next_to_ones_own(workload: str, figure: str, tmp_path: Path) -> None:
    report = report_of(tmp_path, train_on(SLOW_LINK, (1, 2, 4), params={"workload": workload}))
    [table] = [table for table in report.studies[0].tables if "published figures" in table.title]
    assert any(str(row[0]).startswith(figure) for row in table.rows)


def test_a_slow_rank_is_named_in_the_answers_and_the_finding(tmp_path: Path) -> None:
    report = report_of(tmp_path, train_on(Cluster(slow_rank=0.4), (1, 2, 4)))
    named = "the slowest rank is 3 on node 3 (n03)"
    assert any(named in answer for answer in report.studies[0].answers)
    [finding] = [finding for finding in report.findings if "imbalance" in finding.title]
    assert named in finding.evidence
    assert "rank 3 on node 3" in finding.remedy


def test_records_without_figures_of_ranks_have_no_bars_and_say_so(tmp_path: Path) -> None:
    report = report_of(tmp_path, without_parts(train_on(SLOW_LINK, NODES)))
    assert not [chart for chart in report.studies[0].charts if "time of a step" in chart.title]
    [table] = [table for table in report.studies[0].tables if "scaling over nodes" in table.title]
    assert "not split" in table.caption
    [finding] = [finding for finding in report.findings if "not measured" in finding.title]
    assert "docs/scaling.md" in finding.remedy


def test_a_study_over_threads_has_no_scaling_part(tmp_path: Path) -> None:
    report = report_of(tmp_path, scaling())
    assert not [table for table in report.studies[0].tables if "scaling over" in table.title]


def test_the_terminal_shows_efficiency_parts_model_and_cause() -> None:
    text = draw(train_on(SLOW_LINK, NODES))
    assert "weak scaling over nodes" in text
    assert OF_NETWORK in text
    rows = {line.split()[0]: line for line in text.partition("weak scaling")[2].splitlines() if line.strip()}
    assert "0.64 (0.6" in rows["16"]
    assert rows["64"].count(" - ") >= 4
    assert "estimated from CPU time" not in text


def test_two_counts_show_efficiency_and_why_there_is_no_model() -> None:
    text = draw(train_on(SLOW_LINK, (1, 2)))
    assert "No model from fewer than 3 counts: 2 measured." in text
    assert "model" not in text.partition("weak scaling")[2].splitlines()[2]
