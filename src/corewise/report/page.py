"""Render a report as one self-contained HTML page that opens from disk and needs no network."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from corewise.analysis.findings.finding import Finding
from corewise.report.packed_columns import DataBlock, add_cut_note, pack_tables, pack_value
from corewise.report.report_model import Chart, Report, StudyPart, Table
from corewise.report.text_blocks import IdRegistry, clean, format_time, render_prose
from corewise.report.vega_script import build_vega_script
from corewise.store.atomic_files import write_atomically

# Upper limit of the page: 5 MB less a reserve.
PAGE_BYTES = 4_900_000
# The first screen shows this many answers, so that the first chart fits below them; the others are folded.
MAX_FIRST_ANSWERS = 4
STYLES = ("page.css", "parts.css", "print.css")
SCRIPTS = ("basics.js", "format.js", "columns.js", "table.js", "chart.js", "live.js", "main.js")
LEVEL_TITLES = {"problem": "Problem", "warning": "Warning", "info": "Note"}
# The page loads nothing and runs only its own scripts. Vega needs inline styles for its marks.
_POLICY = (
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class _Figure:
    id: str
    number: int
    chart: Chart
    block: DataBlock


@dataclass(frozen=True)
class _TablePlace:
    id: str
    number: int
    table: Table
    block: DataBlock


@dataclass(frozen=True)
class _Answer:
    """A headline, the cautions that qualify it, and details."""

    headline: str
    cautions: Sequence[str]
    details: Sequence[str]


@dataclass(frozen=True)
class _StudyPlace:
    id: str
    part: StudyPart
    answers: Sequence[_Answer]
    figures: Sequence[_Figure]
    tables: Sequence[_TablePlace]


@dataclass(frozen=True)
class _FirstAnswer:
    """An answer on the first screen, with a link to its study where there are several."""

    answer: _Answer
    study: _StudyPlace | None


@dataclass(frozen=True)
class _Contents:
    """All parts of the page; the first figure stands below the answer, on the first screen."""

    first_figure: _Figure | None
    studies: Sequence[_StudyPlace]
    machines: Sequence[_TablePlace]
    versions: Sequence[_TablePlace]

    def list_first_answers(self) -> list[_FirstAnswer]:
        """List the answers of all studies in the order of the page."""
        several = len(self.studies) > 1
        return [
            _FirstAnswer(answer, study if several else None)
            for study in self.studies
            for answer in study.answers or (_NO_ANSWER,)
        ]

    def iterate_blocks(self) -> Iterator[tuple[str, DataBlock]]:
        """Yield the id and the data of every chart and table."""
        if self.first_figure is not None:
            yield self.first_figure.id, self.first_figure.block
        for study in self.studies:
            yield from ((figure.id, figure.block) for figure in study.figures)
            yield from ((place.id, place.block) for place in study.tables)
        yield from ((place.id, place.block) for place in (*self.machines, *self.versions))


_NO_ANSWER = _Answer("No answer yet.", (), ())


def render_page(report: Report) -> str:
    """Render the page to text, with charts, tables, styles and scripts inside."""
    head_script, page_script, vega = _read_asset("theme.js"), _read_assets(SCRIPTS), _build_vega_script()
    scripts = (head_script, page_script, vega)
    contents = _build_contents(report, sum(len(script.encode()) for script in scripts))
    page: str = _load_template().render(
        report=report,
        contents=contents,
        max_first_answers=MAX_FIRST_ANSWERS,
        opening_sentences=_split_summary(report)[0],
        closing_sentences=_split_summary(report)[1],
        findings=_sort_by_severity(report.findings),
        level_titles=LEVEL_TITLES,
        policy=_POLICY.format(hashes=" ".join(_hash_script(script) for script in scripts)),
        style=_read_assets(STYLES),
        head_script=head_script,
        page_script=page_script,
        vega_script=vega,
    )
    return page


def render_answers(report: Report) -> str:
    """Render the title and the answers as an HTML fragment without scripts, for notebooks."""
    sentences = [str(render_prose(sentence)) for sentence in report.summary] or ["Nothing has been measured yet."]
    listed = "".join(f"<li>{sentence}</li>" for sentence in sentences)
    return f"<div><p><b>{render_prose(report.title)}</b></p><ul>{listed}</ul></div>"


def write_page(report: Report, path: Path) -> None:
    """Write the page to a temporary name and rename it, so that a browser never sees half of it."""
    data = render_page(report).encode()
    with write_atomically(path) as aside:
        aside.write_bytes(data)


def _sort_by_severity(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: list(LEVEL_TITLES).index(finding.level))


def _build_contents(report: Report, script_bytes: int) -> _Contents:
    """Assign ids, numbers and data to all charts and tables, in the order of the page."""
    ids = IdRegistry()
    figures = [
        _Figure(ids.create("figure", chart.key), number, chart, _pack_chart(chart))
        for number, chart in enumerate((chart for study in report.studies for chart in study.charts), 1)
    ]
    tables = [table for study in report.studies for table in study.tables]
    tables += [*report.machines, *report.versions]
    taken_bytes = script_bytes + _estimate_text_bytes(report) + sum(len(figure.block.text) for figure in figures)
    blocks = pack_tables(tables, PAGE_BYTES - taken_bytes)
    places = [
        _TablePlace(ids.create("table", table.key), number, add_cut_note(table, packed_table), packed_table.block)
        for number, (table, packed_table) in enumerate(zip(tables, blocks, strict=True), 1)
    ]
    next_figures, next_places = iter(figures), iter(places)
    first = next(iter(figures), None)
    return _Contents(
        first_figure=first,
        studies=[
            _StudyPlace(
                ids.create("study", study.key),
                study,
                _build_answers(study, report),
                [figure for figure in islice(next_figures, len(study.charts)) if figure is not first],
                list(islice(next_places, len(study.tables))),
            )
            for study in report.studies
        ],
        machines=list(islice(next_places, len(report.machines))),
        versions=list(next_places),
    )


def _build_answers(study: StudyPart, report: Report) -> list[_Answer]:
    """Split the study's sentences into answers: a headline starts one, if it is first or in the summary."""
    all_cautions = set(report.asides)
    headlines = [
        i
        for i, sentence in enumerate(study.answers)
        if i == 0 or (sentence in report.summary and sentence not in all_cautions)
    ]
    answers = []
    for i, end in zip(headlines, [*headlines[1:], len(study.answers)], strict=True):
        following = study.answers[i + 1 : end]
        cautions = [sentence for sentence in following if sentence in all_cautions]
        details = [sentence for sentence in following if sentence not in all_cautions]
        answers.append(_Answer(study.answers[i], cautions, details))
    return answers


def _split_summary(report: Report) -> tuple[list[str], list[str]]:
    """Return the summary's sentences that no study has: those before the studies' own, and those after."""
    study_sentences = {sentence for study in report.studies for sentence in study.answers}
    first = next((i for i, sentence in enumerate(report.summary) if sentence in study_sentences), len(report.summary))
    before, after = report.summary[:first], report.summary[first:]
    return list(before), [sentence for sentence in after if sentence not in study_sentences]


def _pack_chart(chart: Chart) -> DataBlock:
    return pack_value({"title": chart.title, "alt": chart.alt, "spec": dict(chart.spec)})


def _estimate_text_bytes(report: Report) -> int:
    """Estimate the bytes of styles and text; only lists of points can be long."""
    points = [point for study in report.studies for one in study.unmeasured for point in one.points]
    return 100_000 + sum(2 * len(point.encode(errors="replace")) + 40 for point in points)


def _hash_script(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _read_asset(name: str) -> str:
    return (resources.files("corewise.report") / "assets" / name).read_text(encoding="utf-8")


def _read_assets(names: Sequence[str]) -> str:
    return "\n".join(_read_asset(name) for name in names)


_build_vega_script = cache(build_vega_script)


@cache
def _load_template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("corewise.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters["prose"] = render_prose
    environment.filters["format_time"] = format_time
    return environment.get_template("page.html.j2")
