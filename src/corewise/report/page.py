"""A report as one self-contained HTML page: it opens from disk and asks no network for anything."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from corewise.report.model import Chart, Finding, Report, StudyPart, Table
from corewise.report.packed import Block, cut_note, packed, packed_tables
from corewise.report.text import Ids, clean, plain_time, prose
from corewise.report.vega_script import vega_script
from corewise.store.aside import written_aside

PAGE_BYTES = 4_900_000  # the whole page, with room to spare below 5 MB
STYLES = ("page.css", "parts.css", "print.css")
SCRIPTS = ("basics.js", "format.js", "columns.js", "table.js", "chart.js", "live.js", "main.js")
LEVEL_WORDS = {"problem": "Problem", "warning": "Warning", "info": "Note"}
# Nothing may be loaded, and only the scripts written into the page may run; Vega sets styles on its marks.
_POLICY = (
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class _Figure:
    id: str
    number: int
    chart: Chart
    block: Block


@dataclass(frozen=True)
class _TablePlace:
    id: str
    number: int
    table: Table
    block: Block


@dataclass(frozen=True)
class _Answer:
    headline: str
    details: Sequence[str]
    is_aside: bool  # it qualifies the headline before it


@dataclass(frozen=True)
class _StudyPlace:
    id: str
    part: StudyPart
    answers: Sequence[_Answer]
    figures: Sequence[_Figure]
    tables: Sequence[_TablePlace]


@dataclass(frozen=True)
class _Contents:
    studies: Sequence[_StudyPlace]
    machines: Sequence[_TablePlace]
    versions: Sequence[_TablePlace]

    def blocks(self) -> Iterator[tuple[str, Block]]:
        for study in self.studies:
            yield from ((figure.id, figure.block) for figure in study.figures)
            yield from ((place.id, place.block) for place in study.tables)
        yield from ((place.id, place.block) for place in (*self.machines, *self.versions))


def render_page(report: Report) -> str:
    """The page as text: words, charts, tables, styles and scripts in one."""
    head_script, page_script, vega = _asset("theme.js"), _assets(SCRIPTS), _vega_script()
    scripts = (head_script, page_script, vega)
    contents = _contents(report, sum(len(script.encode()) for script in scripts))
    page: str = _template().render(
        report=report,
        contents=contents,
        first_words=_own_words(report)[0],
        last_words=_own_words(report)[1],
        findings=_by_gravity(report.findings),
        level_words=LEVEL_WORDS,
        policy=_POLICY.format(hashes=" ".join(_script_hash(script) for script in scripts)),
        style=_assets(STYLES),
        head_script=head_script,
        page_script=page_script,
        vega_script=vega,
    )
    return page


def write_page(report: Report, path: Path) -> None:
    """Write the page aside, then give it its name in one step: a browser never sees half of it."""
    data = render_page(report).encode()
    with written_aside(path) as aside:
        aside.write_bytes(data)


def _by_gravity(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: list(LEVEL_WORDS).index(finding.level))


def _contents(report: Report, script_bytes: int) -> _Contents:
    """All charts and tables with their names, numbers and data, in the order of the page."""
    ids = Ids()
    figures = [
        _Figure(ids.name("figure", chart.key), number, chart, _chart_block(chart))
        for number, chart in enumerate((chart for study in report.studies for chart in study.charts), 1)
    ]
    tables = [table for study in report.studies for table in study.tables]
    tables += [*report.machines, *report.versions]
    taken_bytes = script_bytes + _words_bytes(report) + sum(len(figure.block.text) for figure in figures)
    blocks = packed_tables(tables, PAGE_BYTES - taken_bytes)
    places = [
        _TablePlace(ids.name("table", table.key), number, cut_note(table, made), made.block)
        for number, (table, made) in enumerate(zip(tables, blocks, strict=True), 1)
    ]
    next_figures, next_places = iter(figures), iter(places)
    return _Contents(
        studies=[
            _StudyPlace(
                ids.name("study", study.key),
                study,
                _answers(study, report),
                list(islice(next_figures, len(study.charts))),
                list(islice(next_places, len(study.tables))),
            )
            for study in report.studies
        ],
        machines=list(islice(next_places, len(report.machines))),
        versions=list(next_places),
    )


def _answers(study: StudyPart, report: Report) -> list[_Answer]:
    """The study's sentences under its headlines: the first one, and those that the summary repeats."""
    headlines = [i for i, sentence in enumerate(study.answers) if i == 0 or sentence in report.summary]
    ends = [*headlines[1:], len(study.answers)]
    return [
        _Answer(study.answers[i], study.answers[i + 1 : end], study.answers[i] in report.asides)
        for i, end in zip(headlines, ends, strict=False)
        if study.answers
    ]


def _own_words(report: Report) -> tuple[list[str], list[str]]:
    """The sentences of the summary that no study says: those before the studies' own, and those after."""
    said = {sentence for study in report.studies for sentence in study.answers}
    first = next((i for i, sentence in enumerate(report.summary) if sentence in said), len(report.summary))
    before, after = report.summary[:first], report.summary[first:]
    return list(before), [sentence for sentence in after if sentence not in said]


def _chart_block(chart: Chart) -> Block:
    return packed({"title": chart.title, "alt": chart.alt, "spec": dict(chart.spec)})


def _words_bytes(report: Report) -> int:
    """About what styles and words take in HTML; only lists of points can be long."""
    points = [point for study in report.studies for one in study.unmeasured for point in one.points]
    return 100_000 + sum(2 * len(point.encode(errors="replace")) + 40 for point in points)


def _script_hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (resources.files("corewise.report") / "assets" / name).read_text(encoding="utf-8")


def _assets(names: Sequence[str]) -> str:
    return "\n".join(_asset(name) for name in names)


_vega_script = cache(vega_script)


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("corewise.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters["prose"] = prose
    environment.filters["plain_time"] = plain_time
    return environment.get_template("page.html.j2")
