"""The parts of a report as values, between the analysis of records and the rendering of a page.

Sentences, captions and remedies may hold code between backticks; the page adds a copy button to a command.
A literal backtick of a value is written as PLAIN_BACKTICK.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corewise.analysis.findings.finding import Finding

ColumnFormat = Literal["text", "number", "percent", "bytes", "seconds", "time"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table; values keep their measured unit, the page rounds them.

    Attributes:
        unit: For example "images/s"; empty for text, percent, bytes and seconds.
        hint: Explains the column on demand.
        upto: At the low end of an interval, the key of the column of the high end. The page shows both
            as one: 23.8–24.3.
    """

    key: str
    title: str
    kind: ColumnFormat = "text"
    unit: str = ""
    hint: str = ""
    upto: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that sorts and filters; `columns` and each row of `rows` have the same length.

    Cells are str, int, float, bool or None. `best_rows` are indices of rows to mark: the best, and those
    without a significant difference from it.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    best_rows: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure: a Vega-Lite specification with its data, and the text that makes it self-contained.

    Attributes:
        key: Also names the file of the figure: letters, digits and hyphens.
        caption: The quantity, the interval and its method, the number of runs, the base of any ratio.
        alt: Text for readers who cannot see the figure.
    """

    key: str
    title: str
    spec: Mapping[str, Any]
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """Trials without a result, all for one reason; `points` may be cut short."""

    status: Literal["failed", "skipped"]
    reason: str
    num_trials: int
    points: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One study: its question, its answers (the most important first), and the evidence.

    `method` holds names and values of protocol and noise. `progress` reads like "12 of 20 trials so far"
    while the study runs or after it stopped early. `code` holds lines for the user's program.
    """

    key: str
    title: str
    question: str
    answers: Sequence[str]
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    unmeasured: Sequence[Unmeasured] = ()
    method: Sequence[tuple[str, str]] = ()
    progress: str = ""
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything the page shows.

    Attributes:
        made_at: UTC time in ISO 8601.
        summary: The answers of all studies in a few sentences.
        asides: Sentences that qualify an answer; the page shows them below it.
        notices: Damage in a store, records left out, figures cut short.
        sources: The stores that were read.
        refresh_s: While a study runs, the page reloads itself after this many seconds.
    """

    title: str
    made_at: str
    corewise_version: str
    summary: Sequence[str] = ()
    asides: Sequence[str] = ()
    studies: Sequence[StudyPart] = ()
    findings: Sequence[Finding] = ()
    machines: Sequence[Table] = ()
    versions: Sequence[Table] = ()
    notices: Sequence[str] = ()
    sources: Sequence[str] = ()
    refresh_s: float | None = None

    def _repr_html_(self) -> str:
        """Return the answers as HTML, which notebooks show for a report."""
        from corewise.report.page import render_answers

        return render_answers(self)
