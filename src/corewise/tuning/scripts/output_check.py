"""Check that a setting computes what the default does, by the numbers that the script prints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from corewise.study.planning.numerical_effects import NumericalEffect
from corewise.tuning.scripts.throughput_parser import parse_last_digit, parse_number
from corewise.tuning.search.arena import Rejection

# Allowed relative difference of printed numbers. Rounding differs between runs, and training amplifies it;
# ranks that train together see other batches.
TOLERANCES = {
    NumericalEffect.SAME_NUMBERS: 0.01,
    NumericalEffect.SAME_PRECISION: 0.01,
    NumericalEffect.BATCH_STATISTICS: 0.1,
}
# Only the first numbers are compared; later ones diverge even if nothing is wrong.
NUM_COMPARED = 5
NOT_CHECKED = "the results of the script were not checked: --check 'loss {}' compares printed numbers with the default"


@dataclass(frozen=True)
class PrintedNumber:
    """A number as it was printed; `unit` is the value of its last digit."""

    value: float
    unit: float

    @classmethod
    def parse(cls, text: str) -> "PrintedNumber":
        """Parse a printed number; its value is NaN if the text is not a number."""
        return cls(parse_number(text), parse_last_digit(text))

    def compute_difference(self, other: "PrintedNumber") -> float:
        """Compute the relative difference beyond print rounding; infinite if a number is not finite."""
        if not (math.isfinite(self.value) and math.isfinite(other.value)):
            return math.inf
        difference = abs(self.value - other.value) - max(self.unit, other.unit)
        larger = max(abs(self.value), abs(other.value))
        return max(0.0, difference) / larger if larger else 0.0


@dataclass
class ReferenceNumbers:
    """The numbers that the default printed, and by how much two of its starts differ (`scatter`)."""

    numbers: list[PrintedNumber] = field(default_factory=list)
    scatter: float = 0.0

    def compute_tolerance(self, num_processes: int) -> float:
        """Compute the allowed relative difference for this number of processes."""
        of_class = NumericalEffect.SAME_PRECISION if num_processes == 1 else NumericalEffect.BATCH_STATISTICS
        return TOLERANCES[of_class] + self.scatter

    def add_default_run(self, numbers: Sequence[PrintedNumber]) -> None:
        """Add the numbers of a start of the default; raise Rejection if one is not finite."""
        require_finite(numbers)
        if len(numbers) > len(self.numbers) and self.compute_error(numbers) <= self.scatter:
            self.numbers = list(numbers)

    def compute_error(self, numbers: Sequence[PrintedNumber]) -> float:
        """Compute the largest difference among the first numbers."""
        compared = zip(numbers[:NUM_COMPARED], self.numbers, strict=False)
        return max((ours.compute_difference(theirs) for ours, theirs in compared), default=0.0)

    def judge(self, numbers: Sequence[PrintedNumber], num_processes: int) -> float:
        """Return the error of a candidate's numbers; raise Rejection if it is too large."""
        bad = next((each for each in numbers if not math.isfinite(each.value)), None)
        if bad is not None:
            raise Rejection("check", f"wrong results: it printed {bad.value}")
        error, allowed = self.compute_error(numbers), self.compute_tolerance(num_processes)
        if error > allowed:
            place, ours, theirs = self._find_worst(numbers)
            raise Rejection(
                "check",
                f"wrong results: printed number {place} is {ours:.6g}, but {theirs:.6g} for the default; "
                f"the tolerance is {100 * allowed:.2g} %",
            )
        return error

    def _find_worst(self, numbers: Sequence[PrintedNumber]) -> tuple[int, float, float]:
        pairs = list(zip(numbers[:NUM_COMPARED], self.numbers, strict=False))
        place = max(range(len(pairs)), key=lambda i: pairs[i][0].compute_difference(pairs[i][1]))
        return place + 1, pairs[place][0].value, pairs[place][1].value


def require_finite(numbers: Sequence[PrintedNumber]) -> None:
    """Raise Rejection if one of the first numbers of the default is not finite."""
    bad = next((each for each in numbers[:NUM_COMPARED] if not math.isfinite(each.value)), None)
    if bad is not None:
        raise Rejection("check", f"it prints {bad.value}, which cannot serve as a reference")
