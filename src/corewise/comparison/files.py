"""A comparison written to a file: a page, a figure or JSON, by the ending of its name."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from corewise.comparison.charts import charts_of
from corewise.comparison.exported import json_lines
from corewise.comparison.junit import junit_xml
from corewise.comparison.model import Comparison
from corewise.comparison.page import as_report
from corewise.report.page import render_page
from corewise.spec.errors import UserError, nearest
from corewise.store.aside import NAME_ANOTHER, written_aside

FORMATS = ("html", "json", "pdf", "png", "svg")
_FIGURE_WIDTH = 640
_PNG_SCALE = 2.0


def format_of(path: Path) -> str:
    """The format a file's name asks for; raises UserError for any other."""
    ending = path.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise UserError(f"{path}: the name's ending says what is written: {nearest(ending, FORMATS)}")
    return ending


def check_place(path: Path, option: str) -> None:
    """Raise UserError where a file of this name cannot be written, as far as that is known beforehand."""
    advice = f"name another file with {option}"
    if path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder; {advice}")
    is_special = path.exists() and not path.is_file()
    folder = path.resolve().parent
    if not is_special and not folder.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {folder}; make it, or {advice}")
    place = path if is_special else folder
    if not os.access(place, os.W_OK):
        raise UserError(f"{path} cannot be written: you may not write to {place}; {advice}")


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the comparison in the format the name asks for."""
    kind = format_of(path)
    if kind == "html":
        _write(path, [render_page(as_report(comparison)).encode()])
    elif kind == "json":
        _write(path, json_lines(comparison))
    else:
        _write(path, [_figure(comparison, kind, path)])


def write_junit(comparison: Comparison, path: Path, fail_on: Collection[str] = frozenset({"slower"})) -> None:
    """Write the comparison as JUnit XML; a case fails on what `fail_on` names, as the gate does."""
    _write(path, [junit_xml(comparison, fail_on)], "name another file with --junit")


def _figure(comparison: Comparison, kind: str, path: Path) -> bytes:
    import vl_convert

    charts = charts_of(comparison)
    if not charts:
        raise UserError(f"no trial was measured on both sides: there is nothing to draw in {path}")
    spec = _fixed_width(charts[0].spec, charts[0].title, _subtitle(comparison))
    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE))
    return bytes(vl_convert.vegalite_to_pdf(spec))


def _subtitle(comparison: Comparison) -> str:
    return " ".join((*comparison.summary.disturbed, comparison.summary.sentence))


def _fixed_width(spec: Mapping[str, Any], title: str, subtitle: str) -> dict[str, Any]:
    """The specification for a figure that stands alone: a width of its own, a white ground, a title."""
    import textwrap

    lines = textwrap.wrap(subtitle, 90)
    heading = {"text": title, "subtitle": lines, "anchor": "start"}
    rest = {key: value for key, value in spec.items() if key != "autosize"}
    return {**rest, "width": _FIGURE_WIDTH, "background": "white", "title": heading}


def _write(path: Path, pieces: Iterable[bytes], advice: str = NAME_ANOTHER) -> None:
    with written_aside(path, advice) as aside, open(aside, "wb") as file:
        file.writelines(pieces)
