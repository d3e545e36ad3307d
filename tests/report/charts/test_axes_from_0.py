"""Axes that begin at 0 name it so, whatever prefix the other numbers have."""

import json

from tests.report.sample_trials import scaling, write_store

from corewise.report.charts.chart_theme import build_y_axis
from corewise.report.report_builder import build_report


def test_a_zero_has_no_prefix() -> None:
    axis = build_y_axis("images/s", [1000.0, 3600.0], log=False).to_dict()["axis"]
    assert axis["format"] == "~s"
    assert axis["labelExpr"] == "datum.value === 0 ? '0' : datum.label"


def test_every_bar_chart_of_rates_has_such_an_axis(tmp_path) -> None:  # type: ignore[no-untyped-def]
    layouts = [scaling(params={"memory_format": layout}) for layout in ("contiguous", "channels_last")]
    report = build_report([write_store(tmp_path / "store", *layouts[0], *layouts[1])])
    texts = [json.dumps(chart.spec) for study in report.studies for chart in study.charts]
    bars = [text for text in texts if '"bar"' in text and '"~s"' in text]
    assert bars
    assert all("datum.value === 0" in text for text in bars)
