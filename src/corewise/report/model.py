"""What a report holds, as values: one side computes them from records, the other draws them as a page.

Sentences, captions and remedies may hold code between backticks; a command there gets a button to copy it.
A backtick of a value, which is no markup, stands there as PLAIN_BACKTICK.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

PLAIN_BACKTICK = "\u02cb"  # looks like one, and the page makes one of it

Kind = Literal["text", "number", "percent", "bytes", "seconds", "time"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table; values keep their unit as measured, the page shows them rounded."""

    key: str
    title: str
    kind: Kind = "text"
    unit: str = ""  # "images/s"; empty for text, percent, bytes and seconds
    hint: str = ""  # what it means, shown on demand
    upto: str = ""  # of an interval's low end: the key of the column of its high end, shown as one: 23.8–24.3


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that sorts and filters; `columns` and each row of `rows` have the same length."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # str, int, float, bool or None
    caption: str = ""
    best_rows: Sequence[int] = ()  # places in `rows` to mark as best, or not told from the best


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure: a Vega-Lite specification with its data inside, and the words that make it stand alone."""

    key: str  # names the file of a figure too: letters, digits and hyphens
    title: str
    spec: Mapping[str, Any]
    caption: str  # what is drawn, the interval and its method, how many runs, the base of any ratio
    alt: str  # what one sees, for those who do not see it


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim with its evidence and its remedy."""

    level: Literal["info", "warning", "problem"]
    title: str
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """Trials that gave no number, all for one reason."""

    status: Literal["failed", "skipped"]
    reason: str
    num_trials: int
    points: Sequence[str]  # each in words, such as "threads 16, batch 4"; may be cut short


@dataclass(frozen=True, kw_only=True)
class StudyPart:
    """One study: its question, the answer in words, then what the answer rests on."""

    key: str
    title: str
    question: str
    answers: Sequence[str]  # sentences, the most important first
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    unmeasured: Sequence[Unmeasured] = ()
    method: Sequence[tuple[str, str]] = ()  # protocol and noise: name, value
    progress: str = ""  # "12 of 20 trials so far" while it runs or when it was left


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the page shows."""

    title: str
    made_at: str  # ISO 8601, UTC
    corewise_version: str
    summary: Sequence[str] = ()  # the answers of all studies in a few sentences
    asides: Sequence[str] = ()  # those of the summary that qualify another one: drawn smaller
    studies: Sequence[StudyPart] = ()
    findings: Sequence[Finding] = ()
    machines: Sequence[Table] = ()
    versions: Sequence[Table] = ()
    notices: Sequence[str] = ()  # damage in a store, records left out, figures cut short
    sources: Sequence[str] = ()  # the stores read
    refresh_s: float | None = None  # the page reloads itself after so long, while a study runs
