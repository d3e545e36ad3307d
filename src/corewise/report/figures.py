"""The charts of a report as files for a paper: SVG, PNG or PDF, made offline, black on white."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corewise.report.model import Chart, Report
from corewise.spec.errors import UserError, nearest
from corewise.store.aside import written_aside

FORMATS = ("svg", "png", "pdf")
VEGA_LITE = "6.4"
WIDTH_PX = 480  # half of what two columns of a paper take at 300 dots per inch
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
_INK = {"#888888": "#444444"}  # a grey chosen for light and dark pages is too faint on paper


def write_figures(report: Report, folder: Path, fmt: str = "svg") -> list[Path]:
    """Write every chart into a folder, made if need be; the files come back, named by the charts' keys."""
    if fmt not in FORMATS:
        raise UserError(f"unknown format {fmt!r} of figures: {nearest(fmt, FORMATS)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made: {error.strerror or error}; name another folder with --figures"
        ) from error
    return [_write(chart, folder / f"{chart.key}.{fmt}", fmt) for chart in charts_of_report(report)]


def charts_of_report(report: Report) -> Sequence[Chart]:
    """All charts, in the order of the page."""
    return [chart for study in report.studies for chart in study.charts]


def _write(chart: Chart, path: Path, fmt: str) -> Path:
    data = rendered(chart, fmt)
    with written_aside(path) as aside:
        aside.write_bytes(data)
    return path


def rendered(chart: Chart, fmt: str) -> bytes:
    """One chart as the bytes of a file."""
    import vl_convert

    spec = for_paper(chart)
    if fmt == "svg":
        return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)).encode("utf-8")
    if fmt == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec, vl_version=VEGA_LITE))
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=PNG_SCALE))


def for_paper(chart: Chart) -> dict[str, Any]:
    """The specification in the look of a paper: a fixed width, white, darker lines, nothing that moves."""
    spec: dict[str, Any] = _inked(copy.deepcopy(dict(chart.spec)))
    if spec.get("width") == "container":
        spec["width"] = WIDTH_PX
    spec["config"] = _merged(spec.get("config", {}), _PAPER)
    spec["description"] = chart.alt
    return spec


def _merged(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    both = {**low, **high}
    for name in low.keys() & high.keys():
        if isinstance(low[name], dict) and isinstance(high[name], dict):
            both[name] = _merged(low[name], high[name])
    return both


def _inked(value: Any) -> Any:
    """The specification with greys fit for paper; its data are left alone."""
    if isinstance(value, dict):
        return {k: v if k in ("datasets", "values") else _inked(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_inked(each) for each in value]
    return _INK.get(value, value) if isinstance(value, str) else value
