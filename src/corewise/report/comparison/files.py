"""Writes a comparison to a file: page, figure or JSON, by the suffix of its name."""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from corewise.analysis.comparison.comparison_model import StoreComparison
from corewise.errors import UserError, suggest_nearest
from corewise.report.comparison.charts import build_comparison_charts
from corewise.report.comparison.json_export import iterate_json_lines
from corewise.report.comparison.junit import render_junit_xml
from corewise.report.comparison.page import build_comparison_report
from corewise.report.page import render_page
from corewise.store.atomic_files import NAME_ANOTHER_FILE, write_atomically

FORMATS = ("html", "json", "pdf", "png", "svg")
_FIGURE_WIDTH = 640
_PNG_SCALE = 2.0


def get_format(path: Path) -> str:
    """Return the format that the file's suffix asks for; raise UserError for any other."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise UserError(f"{path}: the suffix chooses the format: {suggest_nearest(suffix, FORMATS)}")
    return suffix


def check_place(path: Path, option: str) -> None:
    """Raise UserError if a file of this name cannot be written, as far as this is known beforehand."""
    advice = f"choose another file with {option}"
    if path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder; {advice}")
    is_special = path.exists() and not path.is_file()
    folder = path.resolve().parent
    if not is_special and not folder.is_dir():
        raise UserError(f"{path} cannot be written: folder {folder} does not exist; create it, or {advice}")
    place = path if is_special else folder
    if not os.access(place, os.W_OK):
        raise UserError(f"{path} cannot be written: no write permission for {place}; {advice}")


def write_comparison(comparison: StoreComparison, path: Path) -> None:
    """Write the comparison in the format that the suffix asks for."""
    file_format = get_format(path)
    if file_format == "html":
        _write(path, [render_page(build_comparison_report(comparison)).encode()])
    elif file_format == "json":
        _write(path, iterate_json_lines(comparison))
    else:
        _write(path, [_render_figure(comparison, file_format, path)])


def write_junit(comparison: StoreComparison, path: Path, fail_on: Collection[str] = frozenset({"slower"})) -> None:
    """Write the comparison as JUnit XML; a case fails on the verdicts in `fail_on`, as the gate does."""
    _write(path, [render_junit_xml(comparison, fail_on)], "choose another file with --junit")


def _render_figure(comparison: StoreComparison, file_format: str, path: Path) -> bytes:
    import vl_convert

    charts = build_comparison_charts(comparison)
    if not charts:
        raise UserError(f"no trial was measured on both sides, so there is no figure to write to {path}")
    spec = _set_fixed_width(charts[0].spec, charts[0].title, _build_subtitle(comparison))
    if file_format == "svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    if file_format == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE))
    return bytes(vl_convert.vegalite_to_pdf(spec))


def _build_subtitle(comparison: StoreComparison) -> str:
    return " ".join((*comparison.summary.disturbed, comparison.summary.sentence))


def _set_fixed_width(spec: Mapping[str, Any], title: str, subtitle: str) -> dict[str, Any]:
    """Return the specification of a standalone figure: fixed width, white background, a title."""
    import textwrap

    lines = textwrap.wrap(subtitle, 90)
    heading = {"text": title, "subtitle": lines, "anchor": "start"}
    rest = {key: value for key, value in spec.items() if key != "autosize"}
    return {**rest, "width": _FIGURE_WIDTH, "background": "white", "title": heading}


def _write(path: Path, pieces: Iterable[bytes], advice: str = NAME_ANOTHER_FILE) -> None:
    with write_atomically(path, advice) as aside, open(aside, "wb") as file:
        file.writelines(pieces)
