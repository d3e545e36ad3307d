"""How a script's throughput is learnt while it runs: from its reports, from its output, or from the clock."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from corewise.spec.errors import UserError

NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"
ANY_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?))"
GROUP = "number"  # of an expression with {}: groups of the user's own may come before it
MIN_REPORTS = 3  # of a sampling, by each process: the first one began before it


def read_pattern(text: str, option: str = "--throughput", number: str = NUMBER) -> re.Pattern[str]:
    """The expression with a number where {} stands, else as its first group; a UserError tells a mistake."""
    example = "'{} img/s'" if option == "--throughput" else "'loss {}'"
    try:
        first = number.replace("(", f"(?P<{GROUP}>", 1)
        pattern = re.compile(text.replace("{}", first, 1).replace("{}", number))
    except re.error as problem:
        raise UserError(f"{option} {text}: not a regular expression: {problem}") from None
    if pattern.groups < 1:
        raise UserError(
            f"{option} {text}: put the number in parentheses, or write {{}} for it, as in {example}"
        )
    return pattern


@dataclass
class Printed:
    """Numbers that a script prints, as they come."""

    path: Path
    pattern: re.Pattern[str]
    only: str = ""  # lines that begin so, as those of one rank do
    offset: int = 0
    rest: str = ""

    def new(self, *, has_ended: bool = False) -> list[float]:
        """The numbers printed since the last call; the last line of one that has ended may be unfinished."""
        return [number_of(text) for text in self.new_texts(has_ended=has_ended)]

    def new_texts(self, *, has_ended: bool = False) -> list[str]:
        """The same as they were printed."""
        text = self.rest + self._read()
        if has_ended and text and not text.endswith("\n"):
            text += "\n"
        whole, newline, self.rest = text.rpartition("\n")
        if self.only:
            whole = "\n".join(line for line in whole.split("\n") if line.startswith(self.only))
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
class Output(Printed):
    """Throughputs that a script prints."""

    useless: str = ""  # the last one that tells nothing, such as 0 or nan, as it was printed

    def new(self, *, has_ended: bool = False) -> list[float]:
        """The throughputs printed since the last call."""
        found = []
        for text in self.new_texts(has_ended=has_ended):
            value = number_of(text)
            if 0 < value < math.inf:
                found.append(value)
            else:
                self.useless = text
        return found


class Report(NamedTuple):
    """That a process has done so many more samples."""

    at_s: float
    samples: float
    who: str = ""


@dataclass
class Reports:
    """Reports of a script's processes: when, how many samples, and whose."""

    path: Path  # of the variable; each process adds its number
    offsets: dict[Path, int] = field(default_factory=dict)

    def new(self) -> list[Report]:
        """The reports since the last call, in the order of time."""
        found = []
        for file in self.path.parent.glob(f"{self.path.name}.*"):
            raw = file.read_bytes()[self.offsets.get(file, 0) :]
            whole = raw[: raw.rfind(b"\n") + 1]
            self.offsets[file] = self.offsets.get(file, 0) + len(whole)
            for line in whole.splitlines():
                at, samples = line.split()
                report = Report(int(at) / 1e9, float(samples), file.name)
                if 0 <= report.samples < math.inf:  # else it tells nothing, as NaN does
                    found.append(report)
        return sorted(found)


def rate(reports: Sequence[Report]) -> float:
    """Samples per second of all processes, each between its own first report and its last.

    What the first one tells was done before it. A process with a single report counts as the others do.
    """
    of_each: dict[str, list[Report]] = {}
    for report in reports:
        of_each.setdefault(report.who, []).append(report)
    rates = [_rate_of_one(own) for own in of_each.values() if own[-1].at_s > own[0].at_s]
    return statistics.fmean(rates) * len(of_each) if rates else 0.0


def _rate_of_one(reports: Sequence[Report]) -> float:
    began, ended = reports[0].at_s, reports[-1].at_s
    return sum(report.samples for report in reports if report.at_s > began) / (ended - began)


def num_of_each(heard: Sequence[object]) -> float:
    """How many reports a process has told in the mean, or how many rates were printed."""
    who = {each.who for each in heard if isinstance(each, Report)}
    return len(heard) / max(1, len(who))


def middle(values: Sequence[float]) -> float:
    """The median of printed throughputs, the first left out: it looks back on a time before."""
    return statistics.median(values[1:] or values)


def number_of(text: str) -> float:
    """The number in a text; NaN where there is none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
