"""Where the throughput of a script comes from: an option of the user, or a format that its output has."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from corewise.tuning.scripts.output_formats import FORMATS, OutputFormat
from corewise.tuning.scripts.rate_units import Unit
from corewise.tuning.scripts.throughput_parser import CounterReader, PrintedThroughputs, RatePattern

# Values of a printed rate that show that it is printed repeatedly.
MIN_VALUES = 2


class RateReader(Protocol):
    """Reads the progress of a start from its output."""

    unit: Unit
    resolution: float
    useless: str

    def read_new(self, *, has_ended: bool = False) -> Sequence[Any]:
        """Return the progress since the last call."""
        ...

    def compute_throughput(self, progress: Sequence[Any]) -> float:
        """Compute the throughput per second of an interval."""
        ...


@dataclass(frozen=True)
class RateSource:
    """How the throughput is read from the output, the same for all starts of a tuning.

    Attributes:
        option: The option of the user, or empty if the format was recognised.
        label: The label of a progress bar.
    """

    rate: RatePattern | None = None
    form: OutputFormat | None = None
    option: str = ""
    label: str | None = None

    @property
    def is_counter(self) -> bool:
        return self.form is not None and self.form.counter is not None

    @property
    def name(self) -> str:
        """What is read, for messages."""
        if self.form is None:
            return self.option
        return f"{self.form.name}{f' {self.label!r}' if self.label else ''}"

    def open(self, path: Path, prefix: str, samples_per_step: float) -> RateReader:
        """Open the output of a start; lines of a recognised format count only if they have the prefix."""
        if self.rate is not None:
            return PrintedThroughputs(path, self.rate, samples_per_step=samples_per_step)
        assert self.form is not None
        if self.is_counter:
            return CounterReader(path, self.form, self.label, prefix, samples_per_step)
        return PrintedThroughputs(path, RatePattern(self.form.pattern), prefix, samples_per_step)


def build_source(rate: RatePattern | None) -> RateSource | None:
    """Build the source of an option; None if there is no option."""
    if rate is None:
        return None
    return RateSource(rate, option="--step-time" if rate.wants_time else "--throughput")


@dataclass
class RecognisedFormat:
    """A format that the output has, its reader, and the progress that was read."""

    source: RateSource
    reader: RateReader
    progress: list[Any]


class FormatDetector:
    """Watches the output of the first start for a known format."""

    def __init__(self, path: Path, prefix: str, samples_per_step: float, *, is_distributed: bool) -> None:
        # Each rank counts its own samples: their sum is unknown if only one rank prints.
        forms = [each for each in FORMATS if not is_distributed or each.counter is None or each.counter.counts_steps]
        sources = [RateSource(form=form) for form in forms]
        self._watched = [RecognisedFormat(each, each.open(path, prefix, samples_per_step), []) for each in sources]

    def detect(self, *, has_ended: bool) -> RecognisedFormat | None:
        """Return the first format with enough lines; after the end, what a whole run gives is enough."""
        for each in self._watched:
            each.progress += each.reader.read_new(has_ended=has_ended)
        if has_ended:
            summaries_first = sorted(self._watched, key=lambda each: not _is_summary(each))
            found = next((each for each in summaries_first if each.reader.compute_throughput(each.progress) > 0), None)
        else:
            found = next((each for each in self._watched if _is_repeated(each)), None)
        if found is None:
            return None
        reader = found.reader
        if isinstance(reader, CounterReader):
            reader.settle()
            return RecognisedFormat(RateSource(form=reader.form, label=reader.label), reader, found.progress)
        return found


def _is_summary(each: RecognisedFormat) -> bool:
    return each.source.form is not None and each.source.form.is_summary


def _is_repeated(each: RecognisedFormat) -> bool:
    if _is_summary(each):
        return False
    return len(each.progress) >= (1 if each.source.is_counter else MIN_VALUES)
