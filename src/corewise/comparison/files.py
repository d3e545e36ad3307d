"""A comparison written to a file: a page, a figure or JSON, by the ending of its name."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corewise.comparison.charts import charts_of
from corewise.comparison.exported import json_lines
from corewise.comparison.junit import junit_xml
from corewise.comparison.model import Comparison
from corewise.comparison.page import as_report
from corewise.report.page import render_page
from corewise.spec.errors import UserError, nearest
from corewise.store.aside import written_aside

FORMATS = ("html", "json", "pdf", "png", "svg")
_FIGURE_WIDTH = 640
_PNG_SCALE = 2.0


def format_of(path: Path) -> str:
    """The format a file's name asks for; raises UserError for any other."""
    ending = path.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise UserError(f"{path}: the name's ending says what is written: {nearest(ending, FORMATS)}")
    return ending


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the comparison in the format the name asks for."""
    kind = format_of(path)
    if kind == "html":
        _write(path, [render_page(as_report(comparison)).encode()])
    elif kind == "json":
        _write(path, json_lines(comparison))
    else:
        _write(path, [_figure(comparison, kind, path)])


def write_junit(comparison: Comparison, path: Path) -> None:
    """Write the comparison as JUnit XML."""
    _write(path, [junit_xml(comparison)])


def _figure(comparison: Comparison, kind: str, path: Path) -> bytes:
    import vl_convert

    charts = charts_of(comparison)
    if not charts:
        raise UserError(f"no trial was measured on both sides: there is nothing to draw in {path}")
    spec = _fixed_width(charts[0].spec, charts[0].title, comparison.summary.sentence)
    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE))
    return bytes(vl_convert.vegalite_to_pdf(spec))


def _fixed_width(spec: Mapping[str, Any], title: str, subtitle: str) -> dict[str, Any]:
    """The specification for a figure that stands alone: a width of its own, a white ground, a title."""
    import textwrap

    lines = textwrap.wrap(subtitle, 90)
    heading = {"text": title, "subtitle": lines, "anchor": "start"}
    rest = {key: value for key, value in spec.items() if key != "autosize"}
    return {**rest, "width": _FIGURE_WIDTH, "background": "white", "title": heading}


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    with written_aside(path) as aside, open(aside, "wb") as file:
        file.writelines(pieces)
