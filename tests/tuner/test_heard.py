"""Throughput read from a script's output and from its reports."""

from pathlib import Path

import pytest

from corewise import progress
from corewise.spec.errors import UserError
from corewise.tuner.heard import Output, Reports, middle, rate, read_pattern


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        ("{} img/s", "epoch 3: 1,234.5 img/s (loss 0.1)", 1234.5),
        (r"speed=(\d+)", "speed=17", 17.0),
        ("{} it/s", "\r 4.2e3 it/s", 4200.0),
    ],
)
def test_a_throughput_is_found_in_a_line(tmp_path: Path, pattern: str, line: str, value: float) -> None:
    path = tmp_path / "output"
    path.write_text(line + "\n")
    assert Output(path, read_pattern(pattern)).new() == [value]


def test_a_line_counts_once_and_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "output"
    output = Output(path, read_pattern("{} img/s"))
    assert output.new() == []
    path.write_text("10 img/s\n20 img")
    assert output.new() == [10.0]
    with path.open("a") as file:
        file.write("/s\n0 img/s\n")
    assert output.new() == [20.0]  # a rate of 0 says nothing
    assert output.new() == []


@pytest.mark.parametrize("pattern", ["(", "img/s"])
def test_a_pattern_without_a_number_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match="--throughput"):
        read_pattern(pattern)


def test_reports_of_a_process_are_read_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.PROGRESS_FILE, str(tmp_path / "progress"))
    reports = Reports(tmp_path / "progress")
    progress.report_progress(samples=4)
    progress.report_progress(samples=6)
    assert [samples for _, samples in reports.new()] == [4.0, 6.0]
    progress.report_progress(samples=1)
    assert [samples for _, samples in reports.new()] == [1.0]


def test_without_a_tuner_a_report_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(progress.PROGRESS_FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    progress.report_progress(samples=4)
    assert list(tmp_path.iterdir()) == []


def test_the_rate_is_that_after_the_first_report() -> None:
    assert rate([(10.0, 100.0), (11.0, 4.0), (12.0, 4.0)]) == 4.0
    assert rate([(10.0, 4.0), (10.0, 4.0)]) == 0.0


def test_the_first_printed_rate_of_a_sampling_is_left_out() -> None:
    assert middle([1.0, 10.0, 12.0]) == 11.0
    assert middle([5.0]) == 5.0
