"""Read the throughput of a running script from its progress reports or from its output."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from corewise.errors import UserError

NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"
ANY_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?))"
# Name of the group that {} stands for; groups of the user may come before it.
GROUP = "number"
# Reports per process and sampling; the first one covers time before the sampling.
MIN_REPORTS = 3


def read_pattern(text: str, option: str = "--throughput", number: str = NUMBER) -> re.Pattern[str]:
    """Compile a pattern whose number is at {}, else in its first group; raise UserError if it is invalid."""
    example = "'{} img/s'" if option == "--throughput" else "'loss {}'"
    try:
        first = number.replace("(", f"(?P<{GROUP}>", 1)
        pattern = re.compile(text.replace("{}", first, 1).replace("{}", number))
    except re.error as problem:
        raise UserError(f"{option} {text}: not a regular expression: {problem}") from None
    if pattern.groups < 1:
        raise UserError(f"{option} {text}: mark the number with {{}} or with parentheses, as in {example}")
    return pattern


@dataclass
class PrintedTexts:
    """Reads the numbers that a script prints.

    Attributes:
        prefix: Only lines with this prefix count, like those of one rank.
        rest: The last line, as long as it is incomplete.
    """

    path: Path
    pattern: re.Pattern[str]
    prefix: str = ""
    offset: int = 0
    rest: str = ""

    def read_new(self, *, has_ended: bool = False) -> list[float]:
        """Return the numbers printed since the last call; after the end, an incomplete line counts too."""
        return [parse_number(text) for text in self.read_new_texts(has_ended=has_ended)]

    def read_new_texts(self, *, has_ended: bool = False) -> list[str]:
        """Return the new numbers as printed texts."""
        text = self.rest + self._read()
        if has_ended and text and not text.endswith("\n"):
            text += "\n"
        whole, newline, self.rest = text.rpartition("\n")
        if self.prefix:
            whole = "\n".join(line for line in whole.split("\n") if line.startswith(self.prefix))
        group = GROUP if GROUP in self.pattern.groupindex else 1
        return [each[group] or "" for each in self.pattern.finditer(whole + newline)]

    def _read(self) -> str:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                raw = file.read()
        except OSError:
            return ""
        self.offset += len(raw)
        return raw.decode("utf-8", "replace").replace("\r", "\n")


@dataclass
class PrintedThroughputs(PrintedTexts):
    """Reads the throughputs that a script prints; `useless` is the last invalid one, like 0 or nan."""

    useless: str = ""

    def read_new(self, *, has_ended: bool = False) -> list[float]:
        """Return the valid throughputs printed since the last call."""
        throughputs = []
        for text in self.read_new_texts(has_ended=has_ended):
            value = parse_number(text)
            if 0 < value < math.inf:
                throughputs.append(value)
            else:
                self.useless = text
        return throughputs


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


def parse_number(text: str) -> float:
    """Parse the number in a text; return NaN if it is not a number."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
