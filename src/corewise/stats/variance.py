"""Split the noise of a trial into variance between processes and within them."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from corewise.stats.values import Values, compute_shifted_mean, require_non_negative


@dataclasses.dataclass(frozen=True)
class Components:
    """Variances in the squared unit of the values; None with a reason if there are too few values."""

    mean: float
    between: float | None
    within: float | None
    num_groups: int
    num_values: int
    reason: str = ""

    @property
    def between_share(self) -> float | None:
        """The share of the variance between processes (intraclass correlation), 0 to 1."""
        if self.between is None or self.within is None:
            return None
        total = self.between + self.within
        return self.between / total if total > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Repetitions:
    """The number of steps that each process should time, or None if no finite number is best."""

    num: int | None
    reason: str


def estimate_variance_components(groups: Sequence[Sequence[float]]) -> Components:
    """Estimate the variance between and within processes from one group of step times per process.

    One-way random-effects analysis of variance for unequal groups, with negative estimates set to 0: Searle,
    Casella and McCulloch, Variance Components (1992). It assumes independent steps within a process.
    """
    return compute_components([require_non_negative(group) for group in groups])


def compute_components(groups: Sequence[Values]) -> Components:
    """Compute the variance components of checked groups, which may hold logarithms."""
    if not groups:
        raise ValueError("at least one group is needed")
    num_groups, num_values = len(groups), sum(group.size for group in groups)
    sizes = np.array([group.size for group in groups], dtype=np.float64)
    # After this shift, equal values have a variance of exactly 0.
    origin = groups[0][0]
    means = np.array([compute_shifted_mean(group - origin) for group in groups])
    grand = float((sizes * means).sum() / num_values)
    mean = float(origin) + grand
    if num_values == num_groups:
        reason = "one value in each process: variance within and between them cannot be separated"
        return Components(mean, None, None, num_groups, num_values, reason)
    squares_within = sum(
        float(((group - origin - center) ** 2).sum()) for group, center in zip(groups, means, strict=True)
    )
    within = squares_within / (num_values - num_groups)
    if num_groups < 2:
        reason = "one process shows no variance between processes: at least 2 are needed"
        return Components(mean, None, within, num_groups, num_values, reason)
    between_square = float((sizes * (means - grand) ** 2).sum()) / (num_groups - 1)
    effective_size = (num_values - float((sizes**2).sum()) / num_values) / (num_groups - 1)
    between = max(0.0, (between_square - within) / effective_size)
    return Components(mean, between, within, num_groups, num_values)


def suggest_repetitions(components: Components, *, step_s: float, start_s: float) -> Repetitions:
    """Suggest the number of steps per process that gives the narrowest interval for the time spent.

    It is ceil(sqrt(start cost / step cost * within / between)): Kalibera and Jones, ISMM 2013. The start cost
    of a process is all time before its first timed step.
    """
    if not (0 < step_s < math.inf and 0 <= start_s < math.inf):
        raise ValueError(f"costs must be finite and positive, not step_s={step_s!r} and start_s={start_s!r}")
    if components.between is None or components.within is None:
        return Repetitions(None, components.reason)
    if components.within == 0:
        return Repetitions(1, "steps within a process do not vary: one is enough")
    if components.between == 0:
        return Repetitions(None, "no variance between processes: more steps in any process help equally")
    best = math.sqrt(start_s / step_s * (components.within / components.between))
    return Repetitions(max(1, math.ceil(best)), "best number of steps for the time spent")
