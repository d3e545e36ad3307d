"""Whether a script computes what it did by default: numbers it prints, at equal progress."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from corewise.spec.knob_classes import KnobClass
from corewise.tuner.arena import Rejected
from corewise.tuner.heard import number_of

# By which a printed number may differ, relative to the larger; ranks that train together see other batches.
TOLERANCES = {
    KnobClass.SAME_NUMBERS: 0.01,  # rounding already differs between runs, and training makes it grow
    KnobClass.SAME_PRECISION: 0.01,
    KnobClass.BATCH_STATISTICS: 0.1,
}
NUM_COMPARED = 5  # the first so many: later ones drift apart even where nothing is wrong
NOT_CHECKED = (
    "the script's numbers were not checked: --check 'loss {}' compares what it prints with the default's"
)


@dataclass(frozen=True)
class Number:
    """A number as it was printed."""

    value: float
    unit: float  # of its last digit

    @classmethod
    def of(cls, text: str) -> "Number":
        """The number in a text; NaN where there is none."""
        mantissa, _, exponent = text.lower().partition("e")
        decimals = len(mantissa.partition(".")[2])
        power = int(exponent) if re.fullmatch(r"[-+]?\d+", exponent) else 0
        return cls(number_of(text), 10.0 ** (power - decimals))

    def difference(self, other: "Number") -> float:
        """Relative to the larger, beyond what printing rounds off; infinite where one is not finite."""
        if not (math.isfinite(self.value) and math.isfinite(other.value)):
            return math.inf
        apart = abs(self.value - other.value) - max(self.unit, other.unit)
        larger = max(abs(self.value), abs(other.value))
        return max(0.0, apart) / larger if larger else 0.0


@dataclass
class Reference:
    """What the default printed, and by how much two starts of it differ."""

    numbers: list[Number] = field(default_factory=list)
    scatter: float = 0.0

    def tolerance(self, num_processes: int) -> float:
        """What is allowed for so many processes."""
        of_class = KnobClass.SAME_PRECISION if num_processes == 1 else KnobClass.BATCH_STATISTICS
        return TOLERANCES[of_class] + self.scatter

    def take(self, numbers: Sequence[Number]) -> None:
        """Take in what a start of the default printed; raises Rejected when nothing can be held to it."""
        require_finite(numbers)
        if len(numbers) > len(self.numbers) and self.error(numbers) <= self.scatter:
            self.numbers = list(numbers)

    def error(self, numbers: Sequence[Number]) -> float:
        """The largest difference among the first numbers."""
        compared = zip(numbers[:NUM_COMPARED], self.numbers, strict=False)
        return max((ours.difference(theirs) for ours, theirs in compared), default=0.0)

    def judge(self, numbers: Sequence[Number], num_processes: int) -> float:
        """The error of a candidate's numbers; raises Rejected when they are wrong."""
        bad = next((each for each in numbers if not math.isfinite(each.value)), None)
        if bad is not None:
            raise Rejected("check", f"wrong numbers: it printed {bad.value}")
        error, allowed = self.error(numbers), self.tolerance(num_processes)
        if error > allowed:
            place, ours, theirs = self._worst(numbers)
            raise Rejected(
                "check",
                f"wrong numbers: number {place} that it printed is {ours:.6g}, the default's {theirs:.6g}; "
                f"{100 * allowed:.2g} % of difference are allowed",
            )
        return error

    def _worst(self, numbers: Sequence[Number]) -> tuple[int, float, float]:
        pairs = list(zip(numbers[:NUM_COMPARED], self.numbers, strict=False))
        place = max(range(len(pairs)), key=lambda i: pairs[i][0].difference(pairs[i][1]))
        return place + 1, pairs[place][0].value, pairs[place][1].value


def require_finite(numbers: Sequence[Number]) -> None:
    """Raises Rejected when one of the default's first numbers is none that others can be held to."""
    bad = next((each for each in numbers[:NUM_COMPARED] if not math.isfinite(each.value)), None)
    if bad is not None:
        raise Rejected("check", f"it prints {bad.value}, and nothing can be held to that")
