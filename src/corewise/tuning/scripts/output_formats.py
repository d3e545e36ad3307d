"""Formats in which training scripts print their progress, recognised without a pattern from the user."""

import re
from dataclasses import dataclass
from functools import lru_cache

from corewise.tuning.scripts.rate_units import Unit

# Possessive quantifiers keep the time linear for long runs of digits.
_NUMBER = r"(?P<number>\d[\d,]*+\.?+\d*+(?:[eE][-+]?\d+)?+)"
# Longer lines are data, not progress. The limit bounds the time of the search for a format.
MAX_LINE_CHARS = 500
_SAMPLES = r"(?:img|image|sample|example|tok|token|seq|sequence|word|frame)s?"
_STEPS = r"(?:it|iter|iteration|step|batch|batche)s?"
_TIMES = r"(?:ns|us|µs|ms|msec|s|sec|seconds)"
_PER_SECOND = r"\s*(?:/|_per_|\sper\s)\s*s(?:ec(?:ond)?)?(?![A-Za-z])"
_STEP_TIME = r"(?:iter_dt|dt|(?:step|iter|iteration|batch)[ _]?time|time[ _/]per[ _](?:step|iter|iteration|batch))"

STEPS = Unit("", is_time=False, noun="steps")
SAMPLES = Unit("", is_time=False, noun="samples")


@dataclass(frozen=True)
class OutputFormat:
    """A format that is recognised in the output of a script.

    Attributes:
        name: For messages.
        pattern: Has the group `number` of a printed rate or time, whose unit stands next to it. Or it has
            the group `count` of a counter, and `total` and `label` if they are printed.
        counter: The unit that a counter counts; None for printed rates and times.
        is_increment: Whether each line adds its count, like the line of a whole epoch.
        is_summary: Whether it is printed once, at the end of a run.
    """

    name: str
    pattern: re.Pattern[str]
    counter: Unit | None = None
    is_increment: bool = False
    is_summary: bool = False


# Bars of preparations that come before the training.
PREPARATION = re.compile(
    r"map|filter|generat|download|load|token|resolv|fetch|sav|writ|read|creat|extract|prepar|preprocess|running|sanity",
    re.IGNORECASE,
)

# The first format with enough lines is used. Progress bars show averages that pauses disturb: their counters
# are read instead, with the times at which they were printed.
FORMATS = (
    OutputFormat(
        "tqdm progress bar",
        re.compile(
            r"^(?P<label>[^|]*?)(?::\s*)?\s*\d+%\|[^|]*\|\s*(?P<count>[\d.]+[kMG]?)/(?P<total>[\d.]+[kMG]?)"
            r"\s*\[[\d:]+<(?![^\]]*B/s)[^\]\n]*\]"
        ),
        STEPS,
    ),
    OutputFormat(
        "tqdm progress bar without a total",
        re.compile(
            r"^(?P<label>[^|\n]*?)(?::\s*)?(?<![\d.])(?P<count>\d[\d.]*+[kMG]?)(?!B)[a-zA-Z]+ "
            r"\[[\d:]+, (?![^\]]*B/s)[^\]\n]*\]"
        ),
        STEPS,
    ),
    OutputFormat(
        "Keras progress bar",
        re.compile(r"^\s*(?P<count>\d+)/(?P<total>\d+|Unknown)\s+(?:[━╸]+|\[[=>.]+\])\s.*?\d+\s*[mu]?s"),
        STEPS,
    ),
    OutputFormat(
        "Keras line per epoch",
        re.compile(r"^\s*(?P<count>\d+)/\d+ - [\d.:]+\w* - [\d.]+[mu]?s/(?:step|epoch)"),
        STEPS,
        is_increment=True,
    ),
    OutputFormat(
        "rich progress bar", re.compile(r"(?<!\d)(?P<count>\d++)/(?P<total>\d++)\s[^\n]*\d:\d\d[^\n]*\d\s?it/s"), STEPS
    ),
    OutputFormat(
        "nanoGPT (time per iteration)", re.compile(rf"^iter \d+:[^\n]*?\btime {_NUMBER}(?=\s*ms)", re.MULTILINE)
    ),
    OutputFormat("ms/batch", re.compile(rf"\bms/batch\s+{_NUMBER}")),
    OutputFormat(
        "samples of an epoch ([n/total (p%)])",
        re.compile(r"\bEpoch:?\s*\d+\s*\[\s*(?P<count>\d+)/\s*(?P<total>\d+)\s*\(\s*[\d.]+%\)\]", re.IGNORECASE),
        SAMPLES,
    ),
    OutputFormat(
        "batches of an epoch ([n/total])",
        re.compile(r"^(?P<label>[^\n\[]*\bEpoch[^\n\[]*)\[\d+\]\s*\[\s*(?P<count>\d+)/\s*(?P<total>\d+)\]"),
        STEPS,
    ),
    OutputFormat(
        "summary of the Hugging Face Trainer (train_samples_per_second)",
        re.compile(rf"train_samples_per_second[\"']?\s*[:=]\s*[\"']?{_NUMBER}"),
        is_summary=True,
    ),
    OutputFormat("printed rate", re.compile(rf"{_NUMBER}(?=\s*[kM]?\s?{_SAMPLES}{_PER_SECOND})")),
    OutputFormat("printed rate", re.compile(rf"(?<![A-Za-z_]){_SAMPLES}{_PER_SECOND}[\"']?\s*[:=]?\s*[\"']?{_NUMBER}")),
    OutputFormat("printed step time", re.compile(rf"\b{_STEP_TIME}\s*[:=]?\s*{_NUMBER}(?=\s*{_TIMES}\b)")),
    OutputFormat("printed step time", re.compile(rf"{_NUMBER}(?=\s*{_TIMES}/{_STEPS}\b)")),
    OutputFormat("printed step rate", re.compile(rf"{_NUMBER}(?=\s*{_STEPS}{_PER_SECOND})")),
)


# Any bar of tqdm, also of downloads and preparations.
_ANY_TQDM = re.compile(r"\d+%\|[^|]*\||\d[a-zA-Z]+ \[[\d:]+, ")


# Several readers ask for the same line one after another.
@lru_cache(maxsize=1024)
def is_counter_line(line: str) -> bool:
    """Return whether a line shows a counter, so that no other number in it is the rate."""
    return bool(_ANY_TQDM.search(line)) or any(each.counter and each.pattern.search(line) for each in FORMATS)


def parse_count(text: str) -> float:
    """Parse a counter; bars print large ones as 1.25k."""
    factor = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1:], 1.0)
    return float(text.rstrip("kMG")) * factor
