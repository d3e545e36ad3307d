"""How a script's throughput is learnt while it runs: from its reports, from its output, or from the clock."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corewise.spec.errors import UserError

NUMBER = r"([-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"
ANY_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI][nN][fF](?:inity)?))"
MIN_REPORTS = 3  # of a sampling: the first one began before it


def read_pattern(text: str, option: str = "--throughput", number: str = NUMBER) -> re.Pattern[str]:
    """The expression whose first group is a number; a UserError says what is wrong with it."""
    example = "'{} img/s'" if option == "--throughput" else "'loss {}'"
    try:
        pattern = re.compile(text.replace("{}", number))
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

    def new(self) -> list[float]:
        """The numbers printed since the last call."""
        return [number_of(text) for text in self.new_texts()]

    def new_texts(self) -> list[str]:
        """The same as they were printed."""
        text = self.rest + self._read()
        whole, newline, self.rest = text.rpartition("\n")
        if self.only:
            whole = "\n".join(line for line in whole.split("\n") if line.startswith(self.only))
        return [each[1] or "" for each in self.pattern.finditer(whole + newline)]

    def _read(self) -> str:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                raw = file.read()
        except OSError:
            return ""
        self.offset += len(raw)
        return raw.decode("utf-8", "replace").replace("\r", "\n")


class Output(Printed):
    """Throughputs that a script prints."""

    def new(self) -> list[float]:
        """The throughputs printed since the last call."""
        return [value for value in super().new() if 0 < value < math.inf]


@dataclass
class Reports:
    """Reports of a script's processes: when, and how many samples."""

    path: Path  # of the variable; each process adds its number
    offsets: dict[Path, int] = field(default_factory=dict)

    def new(self) -> list[tuple[float, float]]:
        """(seconds, samples) of the reports since the last call, in the order of time."""
        found = []
        for file in self.path.parent.glob(f"{self.path.name}.*"):
            raw = file.read_bytes()[self.offsets.get(file, 0) :]
            whole = raw[: raw.rfind(b"\n") + 1]
            self.offsets[file] = self.offsets.get(file, 0) + len(whole)
            for line in whole.splitlines():
                at, samples = line.split()
                found.append((int(at) / 1e9, float(samples)))
        return sorted(found)


def rate(reports: Sequence[tuple[float, float]]) -> float:
    """Samples per second between the first report and the last."""
    began, ended = reports[0][0], reports[-1][0]
    done = sum(samples for at, samples in reports if at > began)
    return done / (ended - began) if ended > began else 0.0


def middle(values: Sequence[float]) -> float:
    """The median of printed throughputs, the first left out: it looks back on a time before."""
    return statistics.median(values[1:] or values)


def number_of(text: str) -> float:
    """The number in a text; NaN where there is none."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
