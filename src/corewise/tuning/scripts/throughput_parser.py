"""Read the throughput of a running script from its progress reports or from its output."""

import itertools
import math
import os
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from corewise.errors import UserError
from corewise.tuning.scripts.output_formats import (
    MAX_LINE_CHARS,
    PREPARATION,
    OutputFormat,
    is_counter_line,
    parse_count,
)
from corewise.tuning.scripts.rate_units import Unit, find_unit
from corewise.tuning.search.arena import Rejection

NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"
ANY_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?))"
# Name of the group that {} stands for; groups of the user may come before it.
GROUP = "number"
# Reports per process and sampling; the first one covers time before the sampling.
MIN_REPORTS = 3
# A counter must have been printed for this long, in seconds, before it is taken for that of the training.
MIN_COUNTER_S = 1.5
# The output is read several times a second, so a larger distance between file and clock, in seconds, is an error.
MAX_CLOCK_LAG_S = 1.0
EXAMPLES = {"--throughput": "'{} img/s'", "--step-time": "'time {}ms'"}
# Progress bars return to the beginning of their line, or delete it.
LINE_ENDS = re.compile(r"\r\n|\r|\x08+")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def read_pattern(text: str, option: str = "--throughput", number: str = NUMBER) -> re.Pattern[str]:
    """Compile a pattern whose number is at {}, else in its first group; raise UserError if it is invalid."""
    try:
        first = number.replace("(", f"(?P<{GROUP}>", 1)
        pattern = re.compile(text.replace("{}", first, 1).replace("{}", number))
    except re.error as problem:
        raise UserError(f"{option} {text}: not a regular expression: {problem}") from None
    if pattern.groups < 1:
        example = EXAMPLES.get(option, "'loss {}'")
        raise UserError(f"{option} {text}: mark the number with {{}} or with parentheses, as in {example}")
    return pattern


@dataclass(frozen=True)
class RatePattern:
    """Finds a rate, or the time of a step, in the output of a script.

    Attributes:
        wants_time: Whether the user says that it is a time; None if the printed unit decides.
        unit: The unit that the pattern itself contains; None if the printed line decides.
    """

    pattern: re.Pattern[str]
    wants_time: bool | None = None
    unit: Unit | None = None

    def find_unit(self, match: re.Match[str]) -> Unit:
        """Return the unit of a match; raise Rejection if it contradicts the option of the user."""
        if self.unit is not None:
            return self.unit
        start, end = match.span(find_group(self.pattern))
        text = match.string
        before = text[text.rfind("\n", 0, start) + 1 : start]
        unit = find_unit(before, text[end:].partition("\n")[0])
        if unit is None:
            return Unit("", is_time=True, noun="steps") if self.wants_time else Unit("", is_time=False)
        # Tools print s/it in place of a low it/s, so these two are converted.
        is_convertible = unit.is_inverse_rate or (unit.counts_steps and not unit.is_time)
        if self.wants_time is not None and unit.is_time != self.wants_time and not is_convertible:
            raise Rejection("unit", describe_wrong_unit(unit, f"the number in {match[0].strip()!r}"))
        return unit


def read_rate_pattern(text: str, option: str = "--throughput") -> RatePattern:
    """Compile the pattern of an option; raise UserError if it is invalid or contains a unit of the other option."""
    pattern, wants_time = read_pattern(text, option), option == "--step-time"
    unit = find_unit(*_split_at_number(text))
    if unit is not None and unit.is_time != wants_time:
        raise UserError(f"{option} {text}: {describe_wrong_unit(unit, 'the number')}")
    # A word like "time" says nothing about its unit, which may be printed after the number.
    return RatePattern(pattern, wants_time, None if unit is None or unit.is_word else unit)


def describe_wrong_unit(unit: Unit, subject: str) -> str:
    """Explain that a number has a unit of the other option."""
    if unit.is_time:
        return (
            f"{subject} is a time ({unit.text}), so a smaller one is faster. Use --step-time for times per step, "
            "as in --step-time 'time {}ms'"
        )
    return f"{subject} is a rate ({unit.text}), so a larger one is faster. Use --throughput, as in '{{}} img/s'"


def find_group(pattern: re.Pattern[str]) -> str | int:
    """Return the group of a pattern that holds the number."""
    return GROUP if GROUP in pattern.groupindex else 1


def _split_at_number(text: str) -> tuple[str, str]:
    """Split a pattern into the plain texts before and after its number."""
    if "{}" in text:
        before, after = text.replace("({})", "{}", 1).split("{}", 1)
    else:
        start = next((m.start() for m in re.finditer(r"(?<!\\)\((?!\?)", text)), len(text))
        depth, end = 0, start
        for end in range(start, len(text)):
            is_escaped = text[end - 1 : end] == "\\"
            depth += (text[end] == "(" and not is_escaped) - (text[end] == ")" and not is_escaped)
            if depth == 0:
                break
        before, after = text[:start], text[end + 1 :]
    return _unescape(before), _unescape(after)


def _unescape(pattern: str) -> str:
    """Replace escapes of a pattern by the text that they match."""
    spaces = re.sub(r"(?:\\s|\\t| )[*+?]?", " ", pattern)
    return re.sub(r"\\([^A-Za-z0-9])", r"\1", re.sub(r"\\b", "", spaces))


@dataclass
class OutputFile:
    """Reads the output of a script as it grows; carriage returns and backspaces of progress bars end a line.

    Attributes:
        rest: The last line, as long as it is incomplete.
        written_at: When the output was last written, in seconds.
    """

    path: Path
    offset: int = 0
    rest: str = ""
    written_at: float = 0.0

    def read_new(self, *, has_ended: bool = False) -> str:
        """Return the complete lines since the last call; after the end, an incomplete line counts too."""
        text = self.rest + self._read()
        if has_ended and text and not text.endswith("\n"):
            text += "\n"
        whole, newline, self.rest = text.rpartition("\n")
        return ESCAPES.sub("", whole + newline)

    def _read(self) -> str:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                raw = file.read()
                written_at, now = os.fstat(file.fileno()).st_mtime, time.time()
                # Another clock, as of a file server, is of no use.
                self.written_at = written_at if abs(now - written_at) < MAX_CLOCK_LAG_S else now
        except OSError:
            return ""
        self.offset += len(raw)
        return LINE_ENDS.sub("\n", raw.decode("utf-8", "replace"))


@dataclass
class PrintedTexts:
    """Reads the numbers that a script prints.

    Attributes:
        prefix: Only lines that start with it count, like those of one rank.
        skips_counters: Whether lines of progress bars and other counters do not count.
    """

    path: Path
    pattern: re.Pattern[str]
    prefix: str = ""
    skips_counters: bool = False

    def __post_init__(self) -> None:
        self._file = OutputFile(self.path)

    def read_new_texts(self, *, has_ended: bool = False) -> list[str]:
        """Return the new numbers as printed texts."""
        group = find_group(self.pattern)
        return [each[group] or "" for each in self._find_new(has_ended=has_ended)]

    def _find_new(self, *, has_ended: bool) -> Iterator[re.Match[str]]:
        text = self._file.read_new(has_ended=has_ended)
        if self.prefix or self.skips_counters:
            lines = [line[len(self.prefix) :] for line in _split_lines(text) if line.startswith(self.prefix)]
            text = "".join(line for line in lines if not self.skips_counters or _may_hold_rate(line))
        return self.pattern.finditer(text)


class PrintedThroughputs(PrintedTexts):
    """Reads the throughputs that a script prints, as rates per second.

    Attributes:
        useless: The last invalid number, like 0 or nan.
        unit: The unit of the last number.
        resolution: The largest rounding of a number, relative to it.
    """

    def __init__(self, path: Path, rate: RatePattern, prefix: str = "", samples_per_step: float = 1.0) -> None:
        # An option of the user may name a number of a progress bar.
        super().__init__(path, rate.pattern, prefix, skips_counters=rate.wants_time is None)
        self.rate, self.samples_per_step = rate, samples_per_step
        self.useless = ""
        self.unit = Unit("", is_time=False)
        self.resolution = 0.0

    def read_new(self, *, has_ended: bool = False) -> list[float]:
        """Return the valid throughputs printed since the last call."""
        throughputs = []
        for match in self._find_new(has_ended=has_ended):
            text = match[find_group(self.pattern)] or ""
            value = parse_number(text)
            if 0 < value < math.inf:
                self.unit = self.rate.find_unit(match)
                self.resolution = max(self.resolution, parse_last_digit(text) / value)
                scale = self.samples_per_step if self.unit.counts_steps else 1.0
                throughputs.append(scale * self.unit.convert_to_rate(value))
            else:
                self.useless = text
        return throughputs

    def compute_throughput(self, progress: Sequence[float]) -> float:
        """Compute the throughput of an interval."""
        return compute_median(progress) if progress else 0.0


class CountReport(NamedTuple):
    """A counter as it was printed; `series` changes when it starts again, as in a new epoch."""

    at_s: float
    value: float
    series: int


class CounterReader:
    """Reads the counter of a script, such as that of a progress bar, with the time at which it was printed.

    A script may print several counters. The one that is read has a label, and the total that is first
    printed often enough: a validation in between has another total.
    """

    resolution = 0.0
    useless = ""

    def __init__(
        self, path: Path, form: OutputFormat, label: str | None = None, prefix: str = "", samples_per_step: float = 1.0
    ) -> None:
        assert form.counter is not None
        self.form, self.label, self.prefix, self.unit = form, label, prefix, form.counter
        self.scale = samples_per_step if form.counter.counts_steps else 1.0
        self._file = OutputFile(path)
        self._key: tuple[str, str] | None = None
        self._reports: dict[tuple[str, str], list[CountReport]] = {}
        self._totals: dict[tuple[str, str], float] = {}

    def read_new(self, *, has_ended: bool = False) -> list[CountReport]:
        """Return the counts since the last call; none before it is known which counter to read."""
        text = self._file.read_new(has_ended=has_ended)
        # A bar ends no line: what follows the last one is complete as soon as it matches.
        lines = [*_split_lines(text), ESCAPES.sub("", self._file.rest)]
        known = {key: len(reports) for key, reports in self._reports.items()}
        for line in lines:
            if line.startswith(self.prefix):
                self._add_line(line[len(self.prefix) :], known)
        if self._key is None:
            self._key = self._choose_key(has_ended)
            return list(self._reports.get(self._key, ())) if self._key else []
        return self._reports[self._key][known.get(self._key, 0) :]

    def compute_throughput(self, progress: Sequence[CountReport]) -> float:
        """Compute the counts per second of an interval, without the time between two series."""
        counted = seconds = 0.0
        for earlier, later in itertools.pairwise(progress):
            if earlier.series == later.series:
                counted += later.value - earlier.value
                seconds += later.at_s - earlier.at_s
        return self.scale * counted / seconds if seconds > 0 else 0.0

    def _add_line(self, line: str, known: Mapping[tuple[str, str], int]) -> None:
        match = self.form.pattern.search(line) if len(line) <= MAX_LINE_CHARS else None
        if match is None:
            return
        groups = match.groupdict()
        label = normalize_label(groups.get("label") or "")
        if self.label is None and PREPARATION.match(label):
            return
        key, count = (label, groups.get("total") or ""), parse_count(match["count"])
        if (self.label is not None and label != self.label) or (self._key is not None and key != self._key):
            return
        reports = self._reports.setdefault(key, [])
        last = reports[-1] if reports else None
        if self.form.is_increment:
            count += last.value if last else 0.0
        elif last is not None and count == last.value:
            return
        series = 0 if last is None else last.series + (count < last.value)
        # Only the last line of what was read at once has a known time.
        if len(reports) > known.get(key, 0) and reports[-1].series == series:
            reports.pop()
        reports.append(CountReport(self._file.written_at, count, series))

    def _choose_key(self, has_ended: bool) -> tuple[str, str] | None:
        if has_ended:
            longest = max(self._reports, key=self._compute_span_s, default=None)
            return longest if longest is not None and self._compute_span_s(longest) > 0 else None
        min_span_s = MIN_COUNTER_S if self.label is None else 0.0
        for key, reports in self._reports.items():
            is_complete = not self.form.is_increment and key[1] and key[1] == f"{reports[-1].value:g}"
            if len(reports) >= MIN_REPORTS and self._compute_span_s(key) >= min_span_s and not is_complete:
                return key
        return None

    def _compute_span_s(self, key: tuple[str, str]) -> float:
        return self._reports[key][-1].at_s - self._reports[key][0].at_s

    def settle(self) -> None:
        """Read the same label in other starts."""
        if self._key is not None:
            self.label = self._key[0]


def normalize_label(label: str) -> str:
    """Return the label of a bar without numbers, which change from epoch to epoch."""
    return re.sub(r"\d+", "#", label).strip(" :")


def _may_hold_rate(line: str) -> bool:
    """Return whether a line may hold a printed rate of a known format."""
    return len(line) <= MAX_LINE_CHARS and not is_counter_line(line)


def _split_lines(text: str) -> list[str]:
    # Other than splitlines(), this keeps characters like form feeds within their line.
    return [line + "\n" for line in text.split("\n")[:-1]]


class ProgressReport(NamedTuple):
    """A process has completed this many more samples."""

    at_s: float
    samples: float
    process: str = ""


@dataclass
class ProgressReader:
    """Reads the progress reports of all processes of a script; each one writes a file `path`.<pid>."""

    path: Path
    offsets: dict[Path, int] = field(default_factory=dict)

    def read_new(self) -> list[ProgressReport]:
        """Return the reports since the last call, ordered by time."""
        reports = []
        for file in self.path.parent.glob(f"{self.path.name}.*"):
            raw = file.read_bytes()[self.offsets.get(file, 0) :]
            whole = raw[: raw.rfind(b"\n") + 1]
            self.offsets[file] = self.offsets.get(file, 0) + len(whole)
            for line in whole.splitlines():
                at, samples = line.split()
                report = ProgressReport(int(at) / 1e9, float(samples), file.name)
                if 0 <= report.samples < math.inf:
                    reports.append(report)
        return sorted(reports)


def compute_rate(reports: Sequence[ProgressReport]) -> float:
    """Compute the samples per second of all processes, each one between its first and its last report.

    The samples of the first report were completed before it. A process with one report counts as the mean
    of the others.
    """
    by_process: dict[str, list[ProgressReport]] = {}
    for report in reports:
        by_process.setdefault(report.process, []).append(report)
    rates = [_compute_process_rate(each) for each in by_process.values() if each[-1].at_s > each[0].at_s]
    return statistics.fmean(rates) * len(by_process) if rates else 0.0


def _compute_process_rate(reports: Sequence[ProgressReport]) -> float:
    began, ended = reports[0].at_s, reports[-1].at_s
    return sum(report.samples for report in reports if report.at_s > began) / (ended - began)


def count_per_process(progress: Sequence[object]) -> float:
    """Count the reports per process, or the printed rates."""
    processes = {each.process for each in progress if isinstance(each, ProgressReport)}
    return len(progress) / max(1, len(processes))


def compute_median(values: Sequence[float]) -> float:
    """Compute the median of printed throughputs without the first, which covers an earlier interval."""
    return statistics.median(values[1:] or values)


def parse_last_digit(text: str) -> float:
    """Return the value of the last printed digit of a number."""
    mantissa, _, exponent = text.lower().partition("e")
    power = int(exponent) if re.fullmatch(r"[-+]?\d+", exponent) else 0
    return 10.0 ** (power - len(mantissa.partition(".")[2]))


def parse_number(text: str) -> float:
    """Parse the number in a text; return NaN if it is not a number."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
