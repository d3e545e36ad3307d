"""Intervals that would leave nothing else to see are cut off, and the caption says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.sample_trials import trial, write_store

from corewise.report.charts.whiskers import describe_cut_whiskers, find_whisker_limit
from corewise.report.report_builder import build_report
from corewise.report.report_model import Chart

QUIET = [98.0, 100.0, 102.0]
WILD = [20.0, 100.0, 500.0]


def charts(tmp_path: Path, rates: list[float]) -> list[Chart]:
    records = [
        trial(values, params={"threads": threads, "memory_format": layout})
        for threads in (1, 2)
        for layout, values in (("contiguous", QUIET), ("channels_last", rates if threads == 2 else QUIET))
    ]
    report = build_report([write_store(tmp_path / "store", *records)], published=False)
    return [chart for study in report.studies for chart in study.charts if not chart.key.endswith("samples")]


def domains(spec: Any) -> list[list[float]]:
    """The linear scales of a specification that begin at 0."""
    if isinstance(spec, list):
        return [found for each in spec for found in domains(each)]
    if not isinstance(spec, dict):
        return []
    own = spec.get("domain") if spec.get("type") != "log" else None
    here = [own] if isinstance(own, list) and own and own[0] == 0 else []
    return here + [found for each in spec.values() for found in domains(each)]


def test_a_scale_ends_near_the_figures_where_an_interval_is_very_wide(tmp_path: Path) -> None:
    found = [chart for chart in charts(tmp_path, WILD) if "Arrowheads" in chart.caption]
    assert {chart.title.partition(": ")[2] for chart in found} >= {"memory format"}
    for chart in found:
        assert "triangle-" in json.dumps(chart.spec)
        assert all(domain[1] < 400 for domain in domains(chart.spec))


def test_ordinary_intervals_are_drawn_whole(tmp_path: Path) -> None:
    drawn = charts(tmp_path, QUIET)
    assert drawn
    assert not any("Arrowheads" in chart.caption or "datum.high" in json.dumps(chart.spec) for chart in drawn)


@pytest.mark.parametrize(
    ("figures", "ends", "limit"),
    [([10.0, 4.0], [25.0], None), ([10.0, 4.0], [26.0, 5.0], 25.0), ([], [1.0], None), ([0.0], [1.0], None)],
)
def test_whiskers_end_at_two_and_a_half_times_the_highest_figure(
    figures: list[float], ends: list[float], limit: float | None
) -> None:
    assert find_whisker_limit(figures, ends) == limit


def test_the_caption_names_the_far_end() -> None:
    assert describe_cut_whiskers(25.0, [5.0, 11084.0], "images/s").endswith("the longest up to 11,084 images/s.")
    assert describe_cut_whiskers(2.5, [3.27]).endswith("the longest up to 3.27.")
    assert describe_cut_whiskers(None, [1.0]) == ""
