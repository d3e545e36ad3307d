"""Names as the page and its figures have them: a workload without its folder, keys that tell charts apart."""

from dataclasses import replace

import pytest
from made_trials import trial

from corewise.report.answers import summary_of
from corewise.report.charts.look import key_of
from corewise.report.groups import Source, groups_of
from corewise.report.model import Report, StudyPart
from corewise.report.page import render_page
from corewise.report.phrases import task_words, workload_words
from corewise.report.tables import unmeasured_of
from corewise.report.text import prose
from corewise.report.workload_names import distinct_names

OWN = "/home/alice/projects/a-very-long-name-of-a-folder/deep/bench/mine.py:make"


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("mine.py:make", "mine.py:make"),
        ("resnet50", "ResNet-50"),
        ("matmul", "square matrix product"),
        ("matrix_product", "matrix product"),
        ("lstm_cell", "LSTM cell"),
        ("", "the workload"),
    ],
)
def test_a_workload_is_named_as_papers_write_it(workload: str, words: str) -> None:
    assert workload_words(workload) == words


@pytest.mark.parametrize(
    "named",
    [
        {OWN: "mine.py:make"},
        {"a/b": "a/b", "resnet50": "resnet50", "": ""},  # no files
        {"/a/x/mine.py:make": "a/x/mine.py:make", "/b/x/mine.py:make": "b/x/mine.py:make"},
        {"/a/mine.py:make": "mine.py:make", "/a/mine.py:other": "mine.py:other"},
        {"mine.py:make": "mine.py:make", "/a/mine.py:make": "a/mine.py:make"},
        {"/x/a/m.py:f": "x/a/m.py:f", "/y/a/m.py:f": "y/a/m.py:f", "/y/b/m.py:f": "b/m.py:f"},
    ],
    ids=str,
)
def test_a_workload_is_named_without_the_folders_that_tell_nothing(named: dict[str, str]) -> None:
    assert distinct_names(named) == named


def test_two_own_workloads_of_one_file_name_are_told_apart_in_titles_and_keys() -> None:
    records = [
        trial([1.0, 1.1, 1.2], params={"workload": f"/home/me/{folder}/mine.py:make"})
        for folder in ("a", "b")
    ]
    groups = groups_of([Source(label="store", records=records)])
    assert [task_words(group) for group in groups] == ["a/mine.py:make training", "b/mine.py:make training"]
    assert len({key_of(group.study, group.workload_name, "samples") for group in groups}) == 2


def test_a_key_too_long_loses_letters_of_its_longest_words() -> None:
    kinds = ("samples", "efficiency-threads", "memory-batch")
    keys = [key_of("a" * 70, "b" * 60, "train", kind) for kind in kinds]
    assert max(map(len, keys)) <= 80
    assert [key.endswith(f"-train-{kind}") for key, kind in zip(keys, kinds, strict=True)] == [True] * 3
    assert len(set(keys)) == 3


def test_what_the_summary_adds_stands_where_it_was_said() -> None:
    parts = [StudyPart(key=key, title=key, question="", answers=[f"Of {key}."]) for key in ("one", "other")]
    report = Report(
        title="Title",
        made_at="2026-11-16T10:00:00.000Z",
        corewise_version="0",
        summary=["First of all.", "Of one.", "Of other.", "1 more answer stands below."],
        studies=parts,
    )
    for studies in (parts, parts[:1]):
        page = render_page(replace(report, studies=studies))
        places = [page.index(words) for words in ("First of all.", "Of one.", "1 more answer")]
        assert places == sorted(places)


def test_answers_that_are_left_out_are_counted() -> None:
    headlines = [[f"Answer {number}."] for number in range(10)]
    assert summary_of(headlines, most=10) == [f"Answer {number}." for number in range(10)]
    assert summary_of(headlines, most=9)[-1] == "1 more answer stands with the studies below."
    assert summary_of(headlines, most=8)[-1] == "2 more answers stand with the studies below."


def test_a_reason_that_points_at_a_mistake_points_at_it_on_the_page() -> None:
    reasons = ("unknown entry 'xh'\n  ic3xh5\n     ^", "line one\n  line two")
    records = [
        replace(trial(1.0, params={"args.n": n}), status="skipped", reason=reason, metrics={}, runs=())
        for n, reason in enumerate(reasons)
    ]
    groups = groups_of([Source(label="store", records=records)])
    pointing, plain = (each.reason for each in unmeasured_of(groups))
    assert pointing == "unknown entry 'xh'\n`  ic3xh5\n     ^`"
    assert plain == "line one line two"
    assert "<code>  ic3xh5\n     ^</code>" in prose(pointing)
