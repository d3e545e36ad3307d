"""Stores with unfinished trials, as an interrupted run leaves them."""

from pathlib import Path

import pytest
from tests.report.sample_trials import scaling, write_store
from typer.testing import CliRunner

from corewise.cli.app import build_app
from corewise.report import live_page
from corewise.report.page import write_page
from corewise.report.report_builder import build_report
from corewise.store.store import Store

APP = build_app()


def make_unfinished(path: Path, *trial_ids: str) -> Path:
    for trial_id in trial_ids:
        Store.open(path, create=False).get_work_dir(trial_id).mkdir(parents=True)
    return path


def test_a_report_before_the_first_record_says_how_to_resume(tmp_path: Path) -> None:
    path = make_unfinished(write_store(tmp_path / "store"), "0" * 16, "1" * 16)
    report = build_report([path])
    assert report.summary == [f"No trial has finished yet. Run `corewise run STUDY --store {path}` to resume."]
    [notice] = report.notices
    assert notice.startswith(f"2 trials of {path} are started but not finished")


def test_a_report_of_part_of_a_study_says_how_much_is_missing(tmp_path: Path) -> None:
    records = scaling()
    path = make_unfinished(write_store(tmp_path / "store", *records), "0" * 16, records[0].trial_id)
    [notice] = build_report([path]).notices
    assert notice.startswith(f"1 trial of {path} is started but not finished")
    assert build_report([path], progress="running: 1 of 2 trials done").notices == []


def test_show_counts_unfinished_trials(tmp_path: Path) -> None:
    path = make_unfinished(write_store(tmp_path / "store"), "0" * 16)
    result = CliRunner().invoke(APP, ["show", "--store", str(path)])
    assert "1 trial is unfinished; run the same `corewise run` again to resume" in result.stdout
    assert "no records here yet" not in result.stdout


def test_how_far_a_study_is_stands_before_its_provisional_answers(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", *scaling())
    write_page(build_report([path], progress="stopped: 4 of 5 trials done"), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    answer = page[page.index('<section id="answer"') :]
    assert answer.index("stopped: 4 of 5") < answer.index('class="lead"')


@pytest.mark.parametrize(("reloads", "state"), [(["--refresh-s", "10"], "has started"), ([], "stopped before")])
def test_a_page_without_figures_says_whether_some_are_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reloads: list[str], state: str
) -> None:
    path, page = write_store(tmp_path / "store"), tmp_path / "page.html"
    arguments = [str(path), str(page), "--study", "nap", "--progress", "0 of 2 trials done", *reloads]
    monkeypatch.setattr("sys.argv", ["live", *arguments])
    assert live_page.main() == 0
    assert f"The study nap {state}" in page.read_text()
