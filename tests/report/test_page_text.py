"""Names on the page and in its figures: a workload without its folder, and distinct keys of charts."""

from dataclasses import replace

import pytest
from tests.report.sample_trials import trial

from corewise.analysis.groups import RecordSource, group_records
from corewise.analysis.phrases import describe_task, describe_workload
from corewise.analysis.workload_names import shorten_workload_names
from corewise.report.answers import summarize_headlines
from corewise.report.charts.chart_theme import build_key
from corewise.report.page import render_page
from corewise.report.report_model import Report, StudyPart
from corewise.report.tables import group_unmeasured
from corewise.report.text_blocks import render_prose

OWN = "/home/alice/projects/a-very-long-name-of-a-folder/deep/bench/mine.py:make"


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("mine.py:make", "mine.py:make"),
        ("resnet50", "ResNet-50"),
        ("matmul", "square matrix product"),
        ("matrix_product", "matrix product"),
        ("lstm_cell", "LSTM cell"),
        ("", "the workload"),
    ],
)
def test_a_workload_is_named_as_papers_write_it(workload: str, name: str) -> None:
    assert describe_workload(workload) == name


@pytest.mark.parametrize(
    "named",
    [
        {OWN: "mine.py:make"},
        # These names are no files.
        {"a/b": "a/b", "resnet50": "resnet50", "": ""},
        {"/a/x/mine.py:make": "a/x/mine.py:make", "/b/x/mine.py:make": "b/x/mine.py:make"},
        {"/a/mine.py:make": "mine.py:make", "/a/mine.py:other": "mine.py:other"},
        {"mine.py:make": "mine.py:make", "/a/mine.py:make": "a/mine.py:make"},
        {"/x/a/m.py:f": "x/a/m.py:f", "/y/a/m.py:f": "y/a/m.py:f", "/y/b/m.py:f": "b/m.py:f"},
    ],
    ids=str,
)
def test_a_workload_is_named_without_irrelevant_folders(named: dict[str, str]) -> None:
    assert shorten_workload_names(named) == named


def test_two_own_workloads_of_one_file_name_have_distinct_titles_and_keys() -> None:
    records = [trial([1.0, 1.1, 1.2], params={"workload": f"/home/me/{folder}/mine.py:make"}) for folder in ("a", "b")]
    groups = group_records([RecordSource(label="store", records=records)])
    assert [describe_task(group) for group in groups] == ["a/mine.py:make training", "b/mine.py:make training"]
    assert len({build_key(group.study, group.workload_name, "samples") for group in groups}) == 2


def test_a_key_too_long_is_cut_in_its_longest_parts() -> None:
    endings = ("samples", "efficiency-threads", "memory-batch")
    keys = [build_key("a" * 70, "b" * 60, "train", ending) for ending in endings]
    assert max(map(len, keys)) <= 80
    assert [key.endswith(f"-train-{ending}") for key, ending in zip(keys, endings, strict=True)] == [True] * 3
    assert len(set(keys)) == 3


def test_the_summarys_own_sentences_keep_their_place() -> None:
    parts = [StudyPart(key=key, title=key, question="", answers=[f"Of {key}."]) for key in ("one", "other")]
    report = Report(
        title="Title",
        made_at="2026-11-16T10:00:00.000Z",
        corewise_version="0",
        summary=["First of all.", "Of one.", "Of other.", "1 more answer below."],
        studies=parts,
    )
    for studies in (parts, parts[:1]):
        page = render_page(replace(report, studies=studies))
        places = [page.index(text) for text in ("First of all.", "Of one.", "1 more answer")]
        assert places == sorted(places)


def test_answers_that_are_left_out_are_counted() -> None:
    headlines = [[f"Answer {number}."] for number in range(10)]
    assert summarize_headlines(headlines, most=10) == [f"Answer {number}." for number in range(10)]
    assert summarize_headlines(headlines, most=9)[-1] == "1 more answer below, with the studies."
    assert summarize_headlines(headlines, most=8)[-1] == "2 more answers below, with the studies."


def test_a_reason_that_points_at_a_mistake_points_at_it_on_the_page() -> None:
    reasons = ("unknown entry 'xh'\n  ic3xh5\n     ^", "line one\n  line two")
    records = [
        replace(trial(1.0, params={"args.n": n}), status="skipped", reason=reason, metrics={}, runs=())
        for n, reason in enumerate(reasons)
    ]
    groups = group_records([RecordSource(label="store", records=records)])
    pointing, plain = (each.reason for each in group_unmeasured(groups))
    assert pointing == "unknown entry 'xh'\n`  ic3xh5\n     ^`"
    assert plain == "line one line two"
    assert "<code>  ic3xh5\n     ^</code>" in render_prose(pointing)
