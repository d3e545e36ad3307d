"""What docs/report.md and docs/twelve-rules.md promise is there."""

import importlib
import re
from pathlib import Path
from typing import get_args

import pytest
from tests.report.sample_trials import REAL_STORE, scaling, trial, write_store

from corewise.report.publications.published_figures import (
    Publication,
    Published,
    PublishedGrid,
    PublishedLine,
    PublishedValue,
    Quantity,
    load_publication,
)
from corewise.report.report_builder import build_report
from corewise.report.report_model import Report

DOCS = Path(__file__).resolve().parents[2] / "docs"
PLACE = re.compile(r"(chart|column|method|code): `([^`]+)`")


def table(document: str, head: str) -> list[list[str]]:
    lines = (DOCS / document).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Build a report of the real store and one with inference, which has an extra column."""
    infer = [trial(10.0 * t, params={"threads": t, "mode": "infer"}, metrics={"latency_p99_s": 0.1}) for t in (1, 2)]
    return build_report([REAL_STORE, write_store(tmp_path_factory.mktemp("infer") / "store", *infer)])


def test_there_are_twelve_rules_in_their_order() -> None:
    assert [row[0].partition(".")[0] for row in table("twelve-rules.md", "rule")] == [str(i) for i in range(1, 13)]


def test_every_place_a_rule_names_exists(report: Report) -> None:
    charts = {chart.key for part in report.studies for chart in part.charts}
    columns = {column.title for part in report.studies for each in part.tables for column in each.columns}
    method = {name for part in report.studies for name, _ in part.method}
    num = 0
    for number, _, places in table("twelve-rules.md", "rule"):
        for category, name in PLACE.findall(places):
            num += 1
            if category == "chart":
                assert any(key.endswith(name) for key in charts), f"{number}: {name}"
            elif category == "code":
                module, _, function = name.rpartition(".")
                assert callable(getattr(importlib.import_module(module), function)), f"{number}: {name}"
            else:
                assert name in (columns if category == "column" else method), f"{number}: {name}"
    assert num >= 25


def test_captions_keep_what_the_rules_say_of_them(report: Report) -> None:
    captions = {chart.key: chart.caption for part in report.studies for chart in part.charts}
    for key, caption in captions.items():
        if "efficiency-threads" in key:
            assert "Base: " in caption
        if "throughput-threads" in key:
            assert "images/s)" in caption
        if "processes-threads" in key and "map" not in key:
            assert "Figures above the bars: ratio to " in caption
        if "samples" not in key and "memory" not in key:
            assert "interval" in caption
    results = [each for part in report.studies for each in part.tables if each.key.endswith("results")]
    assert all("slightly optimistic because it was selected" in each.caption for each in results)


def test_every_sentence_with_a_speed_up_names_both_sides() -> None:
    for part in build_report([REAL_STORE]).studies:
        for sentence in part.answers:
            if re.search(r"\d× \(", sentence):
                assert re.search(r"as fast as|the throughput of|no significant difference|that with", sentence), (
                    sentence
                )


def test_the_tables_of_published_files_are_those_of_the_code() -> None:
    of_publication = [key for row in table("report.md", "key of a publication") for key in quoted(row[0])]
    assert sorted(of_publication) == sorted(Publication.model_fields)
    rows = table("report.md", "key of a figure")
    assert sorted(key for row in rows for key in quoted(row[0])) == sorted(Published.model_fields)
    meaning = {key: row[1] for row in rows for key in quoted(row[0])}
    assert quoted(meaning["quantity"]) == list(get_args(Quantity))
    for key, model in (("lines", PublishedLine), ("values", PublishedValue)):
        assert sorted(quoted(meaning[key])) == sorted(model.model_fields)
    assert set(PublishedGrid.model_fields) <= set(quoted(meaning["grid"]))


def test_the_example_of_a_published_file_can_be_read(tmp_path: Path) -> None:
    text = (DOCS / "report.md").read_text()
    [example] = re.findall(r"^```yaml\n(# node-scaling\.yaml.*?)^```$", text, re.MULTILINE | re.DOTALL)
    path = tmp_path / "node-scaling.yaml"
    path.write_text(example)
    assert load_publication(path).figures[0].lines[0].y[-1] == 0.9


def test_the_example_of_a_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_store(tmp_path / "corewise-store", *scaling())
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "report.md").read_text()
    [example] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(example, "report.md", "exec"), {})
    assert "fastest" in capsys.readouterr().out
