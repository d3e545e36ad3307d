"""Throughput read from a script's output and from its reports."""

from pathlib import Path

import pytest

from corewise import progress
from corewise.errors import UserError
from corewise.tuning.scripts.throughput_parser import (
    PrintedThroughputs,
    ProgressReader,
    ProgressReport,
    compute_median,
    compute_rate,
    count_per_process,
    read_rate_pattern,
)
from corewise.tuning.search.arena import Rejection


@pytest.mark.parametrize(
    ("pattern", "line", "value"),
    [
        ("{} img/s", "epoch 3: 1,234.5 img/s (loss 0.1)", 1234.5),
        (r"speed=(\d+)", "speed=17", 17.0),
        ("{} it/s", "\r 4.2e3 it/s", 4200.0),
        (r"(epoch|step) \d+: {} (img|images)/s", "step 7: 9.5 images/s", 9.5),
    ],
)
def test_a_throughput_is_found_in_a_line(tmp_path: Path, pattern: str, line: str, value: float) -> None:
    path = tmp_path / "output"
    path.write_text(line + "\n")
    assert PrintedThroughputs(path, read_rate_pattern(pattern)).read_new() == [value]


def test_a_line_counts_once_and_only_if_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "output"
    output = PrintedThroughputs(path, read_rate_pattern("{} img/s"))
    assert output.read_new() == []
    path.write_text("10 img/s\n20 img")
    assert output.read_new() == [10.0]
    with path.open("a") as file:
        file.write("/s\n0 img/s\n")
    assert output.read_new() == [20.0]
    assert output.useless == "0"
    assert output.read_new() == []


@pytest.mark.parametrize("pattern", ["(", "img/s"])
def test_a_pattern_without_a_number_is_refused(pattern: str) -> None:
    with pytest.raises(UserError, match="--throughput"):
        read_rate_pattern(pattern)


def test_reports_of_a_process_are_read_incrementally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.PROGRESS_FILE, str(tmp_path / "progress"))
    reports = ProgressReader(tmp_path / "progress")
    progress.report_progress(samples=4)
    progress.report_progress(samples=6)
    assert [report.samples for report in reports.read_new()] == [4.0, 6.0]
    progress.report_progress(samples=1)
    assert [report.samples for report in reports.read_new()] == [1.0]


def test_a_report_that_is_not_a_number_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.PROGRESS_FILE, str(tmp_path / "progress"))
    for samples in (float("nan"), float("inf"), -1, 3):
        progress.report_progress(samples=samples)
    assert [report.samples for report in ProgressReader(tmp_path / "progress").read_new()] == [3.0]


def test_without_a_tuner_a_report_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(progress.PROGRESS_FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    progress.report_progress(samples=4)
    assert list(tmp_path.iterdir()) == []


def test_the_rate_starts_at_the_first_report() -> None:
    assert compute_rate([ProgressReport(10.0, 100.0), ProgressReport(11.0, 4.0), ProgressReport(12.0, 4.0)]) == 4.0
    assert compute_rate([ProgressReport(10.0, 4.0), ProgressReport(10.0, 4.0)]) == 0.0


def test_the_first_report_of_every_process_only_starts_the_clock() -> None:
    steps = [(10.0, 11.0, 12.0), (10.25, 11.25, 12.25), (10.5, 11.5, 12.5)]
    reports = sorted(ProgressReport(at, 4.0, str(process)) for process, times in enumerate(steps) for at in times)
    assert compute_rate(reports) == pytest.approx(3 * 4.0)
    assert compute_rate([*reports, ProgressReport(12.6, 4.0, "3")]) == pytest.approx(4 * 4.0)


def test_a_sampling_waits_for_the_reports_of_every_process() -> None:
    assert count_per_process([]) == 0
    assert count_per_process([10.0, 11.0, 12.0]) == 3
    assert (
        count_per_process([ProgressReport(1.0, 1.0, "a"), ProgressReport(2.0, 1.0, "a"), ProgressReport(3.0, 1.0, "b")])
        == 1.5
    )


def test_the_last_line_of_an_ended_script_needs_no_newline(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_text("10 img/s\n20 img/s")
    output = PrintedThroughputs(path, read_rate_pattern("{} img/s"))
    assert output.read_new() == [10.0]
    assert output.read_new(has_ended=True) == [20.0]
    assert output.read_new(has_ended=True) == []


def test_the_first_printed_rate_of_a_sampling_is_ignored() -> None:
    assert compute_median([1.0, 10.0, 12.0]) == 11.0
    assert compute_median([5.0]) == 5.0


@pytest.mark.parametrize(
    ("option", "pattern", "line", "rate"),
    [
        ("--step-time", "time {}ms", "iter 3: time 125.0ms, mfu 3%", 8.0),
        ("--step-time", "time {}", "iter 3: time 125.0ms, mfu 3%", 8.0),
        ("--step-time", r"time\s+([\d.]+)", "Time: time  0.5 (0.6)", 2.0),
        ("--step-time", "ms/batch {}", "ms/batch 12.5 | loss 5", 80.0),
        ("--step-time", "{}(?:s/it|it/s)", " 3/9 [00:01<00:03, 4.0it/s]", 4.0),
        ("--throughput", "{}(?:s/it|it/s)", " 3/9 [00:01<00:03, 4.0s/it]", 0.25),
        ("--throughput", "img/s: {}", "img/s: 512.0 s/epoch: 3", 512.0),
        ("--throughput", "speed {}", "speed 1.5 ktokens/s", 1500.0),
    ],
)
def test_times_and_rates_become_rates(tmp_path: Path, option: str, pattern: str, line: str, rate: float) -> None:
    path = tmp_path / "output"
    path.write_text(line + "\n")
    assert PrintedThroughputs(path, read_rate_pattern(pattern, option)).read_new() == [pytest.approx(rate)]


@pytest.mark.parametrize(
    ("option", "pattern", "other"),
    [
        ("--throughput", "time {}ms", "--step-time"),
        ("--throughput", r"time\s*({}) ms", "--step-time"),
        ("--throughput", "ms/batch {}", "--step-time"),
        ("--throughput", "{} s/it", "--step-time"),
        ("--throughput", "time: {}", "--step-time"),
        ("--throughput", r"took (\d+\.\d+)\s*seconds", "--step-time"),
        ("--step-time", "{} img/s", "--throughput"),
        ("--step-time", r"(\d+) it/s", "--throughput"),
    ],
)
def test_a_pattern_whose_unit_contradicts_its_option_is_refused(option: str, pattern: str, other: str) -> None:
    with pytest.raises(UserError, match=rf"(?s){option} .*Use {other}"):
        read_rate_pattern(pattern, option)


@pytest.mark.parametrize(
    ("option", "pattern", "line"),
    [("--throughput", "speed {}", "speed 12.5 ms"), ("--step-time", "speed {}", "speed 12 img/s")],
)
def test_a_printed_unit_that_contradicts_the_option_is_refused(
    tmp_path: Path, option: str, pattern: str, line: str
) -> None:
    path = tmp_path / "output"
    path.write_text(line + "\n")
    with pytest.raises(Rejection, match="Use --"):
        PrintedThroughputs(path, read_rate_pattern(pattern, option)).read_new()


def test_coarse_rounding_is_known(tmp_path: Path) -> None:
    path = tmp_path / "output"
    path.write_text("9 ms\n9.125 ms\n")
    output = PrintedThroughputs(path, read_rate_pattern("{} ms", "--step-time"))
    output.read_new()
    assert output.resolution == pytest.approx(1 / 9)
