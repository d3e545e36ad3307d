"""Export a report's charts as SVG, PNG or PDF files for papers; works offline."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corewise.errors import UserError, suggest_nearest
from corewise.report.report_model import Chart, Report
from corewise.store.atomic_files import write_atomically

FORMATS = ("svg", "png", "pdf")
VEGA_LITE = "6.4"
# Half the width of a two-column page at 300 dots per inch.
WIDTH_PX = 480
PNG_SCALE = 3.0
_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
_PAPER: dict[str, Any] = {
    "background": "white",
    "font": _FONT,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "labelColor": "black",
        "gridColor": "#dddddd", "domainColor": "#444444", "tickColor": "#444444",
    },
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "text": {"fontSize": 12},
}  # fmt: skip
# The grey that suits light and dark pages is too faint on paper.
_PRINT_GREYS = {"#888888": "#444444"}


def write_figures(report: Report, folder: Path, fmt: str = "svg") -> list[Path]:
    """Write every chart into a folder, which is created if needed, and return the files."""
    if fmt not in FORMATS:
        raise UserError(f"unknown figure format {fmt!r}: {suggest_nearest(fmt, FORMATS)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be created: {error.strerror or error}; choose another folder with --figures"
        ) from error
    return [_write(chart, folder / f"{chart.key}.{fmt}", fmt) for chart in list_charts(report)]


def list_charts(report: Report) -> Sequence[Chart]:
    """List all charts in the order of the page."""
    return [chart for study in report.studies for chart in study.charts]


def _write(chart: Chart, path: Path, fmt: str) -> Path:
    data = render_chart(chart, fmt)
    with write_atomically(path) as aside:
        aside.write_bytes(data)
    return path


def render_chart(chart: Chart, fmt: str) -> bytes:
    """Render one chart to the bytes of a file."""
    import vl_convert

    spec = convert_for_paper(chart)
    if fmt == "svg":
        return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)).encode("utf-8")
    if fmt == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec, vl_version=VEGA_LITE))
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=PNG_SCALE))


def convert_for_paper(chart: Chart) -> dict[str, Any]:
    """Return the specification in print style: fixed width, white background, darker lines."""
    spec: dict[str, Any] = _replace_greys(copy.deepcopy(dict(chart.spec)))
    if spec.get("width") == "container":
        spec["width"] = WIDTH_PX
    spec["config"] = _merge(spec.get("config", {}), _PAPER)
    spec["description"] = chart.alt
    return spec


def _merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    both = {**low, **high}
    for name in low.keys() & high.keys():
        if isinstance(low[name], dict) and isinstance(high[name], dict):
            both[name] = _merge(low[name], high[name])
    return both


def _replace_greys(value: Any) -> Any:
    """Replace greys that are too faint for paper; data stay unchanged."""
    if isinstance(value, dict):
        return {k: v if k in ("datasets", "values") else _replace_greys(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace_greys(each) for each in value]
    return _PRINT_GREYS.get(value, value) if isinstance(value, str) else value
