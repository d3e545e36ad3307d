"""Axes that begin at 0 format each tick alone, whatever prefix the other numbers have."""

import json

from tests.report.sample_trials import scaling, write_store

from corewise.report.charts.chart_theme import build_y_axis
from corewise.report.report_builder import build_report


def test_a_zero_has_no_prefix() -> None:
    axis = build_y_axis("images/s", [1000.0, 3600.0], log=False).to_dict()["axis"]
    # Each tick has its own prefix: 100 rather than 0.1k, and 0 rather than 0k.
    assert axis["labelExpr"] == "format(datum.value, '~s')"
    assert "format" not in axis


def test_every_bar_chart_of_rates_has_such_an_axis(tmp_path) -> None:  # type: ignore[no-untyped-def]
    layouts = [scaling(params={"memory_format": layout}) for layout in ("contiguous", "channels_last")]
    report = build_report([write_store(tmp_path / "store", *layouts[0], *layouts[1])])
    texts = [json.dumps(chart.spec) for study in report.studies for chart in study.charts]
    bars = [text for text in texts if '"bar"' in text and "'~s'" in text]
    assert bars
    assert not any('"format": "~s"' in text for text in bars)
