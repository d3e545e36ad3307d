"""How much of the noise lies between processes and how much within them."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.values import Values, non_negative, shifted_mean


@dataclasses.dataclass(frozen=True)
class Components:
    """Variances in the values' unit squared; None where the groups cannot show one, with the reason."""

    mean: float
    between: float | None
    within: float | None
    num_groups: int
    num_values: int
    reason: str = ""

    @property
    def between_share(self) -> float | None:
        """The part of all variance that lies between processes (intraclass correlation), 0 to 1."""
        if self.between is None or self.within is None:
            return None
        total = self.between + self.within
        return self.between / total if total > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Repetitions:
    """The number of steps each process should time, or None where no finite number is best."""

    num: int | None
    reason: str


def variance_components(groups: Sequence[Sequence[float]]) -> Components:
    """The variance between and within processes, one group of step times per process.

    One-way random-effects analysis of variance for unequal groups, a negative estimate cut to 0: Searle,
    Casella and McCulloch, Variance Components (1992). Assumes steps independent within a process.
    """
    return components_of([non_negative(group) for group in groups])


def components_of(groups: Sequence[Values]) -> Components:
    """The variance components of groups already checked, which may hold logarithms."""
    if not groups:
        raise ValueError("at least one group is needed")
    num_groups, num_values = len(groups), sum(group.size for group in groups)
    sizes = np.array([group.size for group in groups], dtype=np.float64)
    origin = groups[0][0]  # equal values then give exactly 0
    means = np.array([shifted_mean(group - origin) for group in groups])
    grand = float((sizes * means).sum() / num_values)
    mean = float(origin) + grand
    if num_values == num_groups:
        reason = "one value in each process: variance within and between them cannot be told apart"
        return Components(mean, None, None, num_groups, num_values, reason)
    squares_within = sum(
        float(((group - origin - at) ** 2).sum()) for group, at in zip(groups, means, strict=True)
    )
    within = squares_within / (num_values - num_groups)
    if num_groups < 2:
        reason = "one process shows no variance between processes: at least 2 are needed"
        return Components(mean, None, within, num_groups, num_values, reason)
    between_square = float((sizes * (means - grand) ** 2).sum()) / (num_groups - 1)
    effective_size = (num_values - float((sizes**2).sum()) / num_values) / (num_groups - 1)
    between = max(0.0, (between_square - within) / effective_size)
    return Components(mean, between, within, num_groups, num_values)


def repetitions_per_process(components: Components, *, step_s: float, start_s: float) -> Repetitions:
    """The number of steps per process that gives the narrowest interval for the time spent.

    ceil(sqrt(start cost / step cost * within / between)): Kalibera and Jones, ISMM 2013, where the
    start cost of a process is all it spends before its first timed step.
    """
    if not (0 < step_s < math.inf and 0 <= start_s < math.inf):
        raise ValueError(f"costs must be finite and positive, not step_s={step_s!r} and start_s={start_s!r}")
    if components.between is None or components.within is None:
        return Repetitions(None, components.reason)
    if components.within == 0:
        return Repetitions(1, "steps within a process do not vary: one is as good as many")
    if components.between == 0:
        return Repetitions(None, "no variance between processes was seen: more steps in any process will do")
    best = math.sqrt(start_s / step_s * (components.within / components.between))
    return Repetitions(max(1, math.ceil(best)), "best number of steps for the time spent")
