"""Terminal, page, comparison and export give the same winners, ties and efficiencies of one store."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.sample_trials import MACHINE, PROTOCOL, around, trial, write_store
from typer.testing import CliRunner

from corewise.analysis.comparison.selection import parse_by
from corewise.analysis.comparison.store_comparison import compare_stores
from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.groups import RecordSource, group_records
from corewise.analysis.ranking import rank_trials
from corewise.analysis.sources import read_sources
from corewise.cli.app import build_app
from corewise.report.report_builder import build_report
from corewise.report.report_model import Table
from corewise.study.record import Record

APP = build_app()

OLD, NEW = "node1", "node2"
OTHER_MACHINE = {**MACHINE, "hostname": NEW, "host_class": "bbbb2222", "microarchitecture": "zen4"}
LONGER = {**PROTOCOL, "target_interval": 0.02}
# Throughput by threads. On the old machine 8 threads win clearly; on the new one 2 and 4 threads tie, and all
# are faster than anything on the old one.
OLD_RATES = {1: 10.0, 2: 19.0, 4: 30.0, 8: 40.0}
NEW_RATES = {1: 60.0, 2: 99.9, 4: 100.0, 8: 70.0}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two machine classes, each measured with another Corewise, protocol and version of the framework."""
    records = [trial(around(rate, 0.02), params={"threads": n}) for n, rate in OLD_RATES.items()]
    records += [
        trial(
            around(rate, 0.02),
            params={"threads": n},
            machine=OTHER_MACHINE,
            protocol=LONGER,
            versions={"python": "3.12.3", "torch": "2.14.0"},
            corewise_version="0.2.0",
        )
        for n, rate in NEW_RATES.items()
    ]
    write_store(tmp_path / "store", *records)
    return tmp_path / "store"


def run_cli(*arguments: str) -> Any:
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def read_show(store: Path) -> dict[tuple[str, int], tuple[bool, bool, float]]:
    [table] = run_cli("show", "--store", str(store), "--json")
    return {
        (row["params"]["host"], row["params"]["threads"]): (
            row["is_best"],
            row["may_equal_best"],
            round(row["efficiency"], 4),
        )
        for row in table["rows"]
    }


def read_page(store: Path) -> dict[tuple[str, int], tuple[bool, bool, float]]:
    [part] = build_report([store], published=False).studies
    table = next(table for table in part.tables if table.best_rows)
    hosts = {"icelake, 16 cores": OLD, "zen4, 16 cores": NEW}
    found = {}
    for row in read_rows(table):
        found[hosts[row["machine"]], row["threads"]] = (
            row["standing"] == "best",
            row["standing"] == "≈ best",
            round(row["efficiency"], 4),
        )
    return found


def read_rows(table: Table) -> list[dict[str, Any]]:
    return [
        dict(zip([c.title if c.key.startswith("param-") else c.key for c in table.columns], row, strict=True))
        for row in table.rows
    ]


def read_export(store: Path) -> dict[tuple[str, int], tuple[bool, bool, float]]:
    exported = [Record.from_json(each) for each in run_cli("export", "--store", str(store))]
    [group] = group_records([RecordSource(label="exported", records=exported)])
    ranking, efficiencies = rank_trials(group), compute_efficiencies(group)
    return {
        (record.machine["hostname"], record.params["threads"]): (
            bool(ranking.is_best[i]),
            bool(ranking.may_equal_best[i]),
            round(float(efficiencies.value[i]), 4),
        )
        for i, record in enumerate(group.records)
    }


def test_each_machine_has_a_winner_ties_and_a_base_of_efficiency(store: Path) -> None:
    shown = read_show(store)
    assert {key for key, (is_best, *_) in shown.items() if is_best} == {(OLD, 8), (NEW, 4)}
    assert {key for key, (_, is_tied, _) in shown.items() if is_tied} == {(NEW, 2)}
    assert shown[OLD, 1][2] == shown[NEW, 1][2] == 1.0
    assert shown[OLD, 8][2] == 0.5
    assert shown[NEW, 4][2] == pytest.approx(100 / 60 / 4, abs=1e-4)


def test_page_and_export_agree_with_the_terminal(store: Path) -> None:
    assert read_page(store) == read_show(store)
    assert read_export(store) == read_show(store)


def test_a_row_says_against_which_others_it_is_ranked(store: Path) -> None:
    [table] = run_cli("show", "--store", str(store), "--json")
    tasks = {row["params"]["host"]: row["ranked_within"] for row in table["rows"]}
    assert tasks[OLD]["machine"] == "icelake, 16 cores"
    assert tasks[NEW]["version"] == "2.14.0"
    assert tasks[OLD]["protocol"] != tasks[NEW]["protocol"]


def test_the_sentences_of_a_page_name_the_same_winners(store: Path) -> None:
    [part] = build_report([store], published=False).studies
    old, new = (next(s for s in part.answers if place in s and "images/s" in s) for place in ("icelake", "zen4"))
    assert "fastest with 8 threads" in old
    assert "fastest with 4 threads" in new
    assert "2 threads" in new


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_a_comparison_pairs_trials_of_one_machine_and_agrees_with_the_ranking(store: Path, threads: int) -> None:
    compared = compare_stores(store, store, by=parse_by([f"threads={threads},4"]))
    shown = read_show(store)
    by_host = {next(h for h in (OLD, NEW) if h in each.name): each for each in compared.trials}
    assert set(by_host) == {OLD, NEW}
    assert compared.a.notices == compared.b.notices == []
    is_best, is_tied, _ = shown[NEW, threads]
    assert by_host[NEW].verdict == ("same" if is_tied else "faster")
    assert not is_best
    assert by_host[OLD].verdict == ("slower" if shown[OLD, threads][0] else "faster")
    assert by_host[OLD].ratio == pytest.approx(OLD_RATES[threads] / OLD_RATES[4], rel=1e-3)


def test_groups_read_from_the_store_are_those_of_the_report(store: Path) -> None:
    sources, notices = read_sources([store])
    [group] = group_records(sources)
    assert notices == []
    assert group.task_names == ["machine", "version", "protocol"]
    assert len(rank_trials(group).best) == 2
