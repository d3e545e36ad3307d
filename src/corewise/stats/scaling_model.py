"""Fit a model of step time over nodes or processes, and predict larger counts with intervals.

The time of a step is compute plus the exposed part of the exchange of gradients:

    T(n) = c w(n) + b (n - 1) / n + a (n - 1) + l log2 n + e [n > 1] + s [n >= k]

w(n) is 1 for weak scaling and 1/n for strong scaling. The term of b is the bandwidth of a ring allreduce, a and l
are latencies of a ring and of a tree (Hockney, Parallel Computing 1994; Thakur, Rabenseifner and Gropp, IJHPCA
2005). e is a cost of the first exchange; below 0, it is the part that compute hides (overlap). s is the cost of
crossing a level of the network, such as a switch, from a measured count k on. For strong scaling, b also holds the
part of the work that does not shrink (Amdahl).

Few counts are measured, so they do not show which terms matter. Each subset of terms with a meaning is a candidate.
Its coefficients have a normal prior and its relative error has an inverse gamma prior, so that the prediction is
Student's t. Candidates are averaged with the weight of their marginal likelihood (Hoeting et al., Bayesian Model
Averaging, Statistical Science 1999).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

import numpy as np

from corewise.stats.quantiles import compute_t_quantile, compute_t_tail
from corewise.stats.values import Values, compute_error_rate, compute_sample_variance, require_positive

# A growth cannot be seen, and no error estimated, from fewer counts.
MIN_COUNTS = 3
# The expected relative error of a median step time, and the number of observations that this prior is worth.
PRIOR_ERROR = 0.02
PRIOR_DEGREES = 4.0
# The standard deviation of a cost of the exchange before measuring, in steps of the base.
PRIOR_COST = 0.5
# The relative precision of a quantile.
_PRECISION = 1e-6


class Scaling(Enum):
    """Whether the work of a rank or the work of all ranks is constant."""

    WEAK = "weak"
    STRONG = "strong"


class Term(Enum):
    """One term of the time of a step."""

    COMPUTE = "compute"
    BANDWIDTH = "bandwidth"
    RING_LATENCY = "ring latency"
    TREE_LATENCY = "tree latency"
    ENTRY = "entry"
    LEVEL = "network level"


_CANDIDATES: Sequence[tuple[Term, ...]] = (
    (),
    (Term.BANDWIDTH,),
    (Term.TREE_LATENCY,),
    (Term.RING_LATENCY,),
    (Term.BANDWIDTH, Term.RING_LATENCY),
    (Term.BANDWIDTH, Term.TREE_LATENCY),
    (Term.ENTRY, Term.BANDWIDTH),
    (Term.ENTRY, Term.TREE_LATENCY),
    (Term.ENTRY, Term.RING_LATENCY),
    (Term.LEVEL,),
)


@dataclass(frozen=True)
class Prediction:
    """The predicted step time of one count with its interval."""

    count: int
    step_s: float
    low_s: float
    high_s: float

    @property
    def relative_half_width(self) -> float:
        """Half the width of the interval over the prediction."""
        return (self.high_s - self.low_s) / 2 / self.step_s


@dataclass(frozen=True)
class HeldOutCheck:
    """The prediction of the largest measured count from all smaller ones."""

    prediction: Prediction
    measured_s: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.prediction.step_s / self.measured_s - 1

    @property
    def is_covered(self) -> bool:
        """True if the interval holds the measured step time."""
        return self.prediction.low_s <= self.measured_s <= self.prediction.high_s


@dataclass(frozen=True)
class _Candidate:
    """One fitted subset of terms: the posterior of its coefficients, in steps of the base.

    Attributes:
        level: the count from which the term LEVEL applies.
    """

    terms: tuple[Term, ...]
    level: int
    weight: float
    mean: Values
    covariance: Values
    variance: float
    degrees: float


@dataclass(frozen=True)
class ScalingModel:
    """A fitted model; without candidates, `reason` says why there is none.

    Attributes:
        base_s: the median step time of the smallest count.
    """

    scaling: Scaling
    counts: tuple[int, ...]
    confidence: float
    base_s: float = math.nan
    candidates: Sequence[_Candidate] = field(default=(), repr=False)
    reason: str = ""

    def predict(self, count: int) -> Prediction:
        """Predict the step time of a count."""
        if not self.candidates:
            raise ValueError(f"there is no model: {self.reason}")
        centers = np.empty(len(self.candidates))
        scales = np.empty(len(self.candidates))
        for place, each in enumerate(self.candidates):
            row = _build_rows([count], each.terms, self.scaling, self.counts[0], each.level)[0]
            # Overlap hides the exchange, not the compute.
            centers[place] = max(float(row @ each.mean), float(row[0] * each.mean[0]))
            spread = centers[place] ** 2 + float(row @ each.covariance @ row)
            scales[place] = math.sqrt(each.variance * spread)
        alpha = compute_error_rate(self.confidence)
        middle, low, high = (self._find_quantile(centers, scales, p) for p in (0.5, alpha / 2, 1 - alpha / 2))
        floor = 1e-6 * middle
        return Prediction(count, middle * self.base_s, max(low, floor) * self.base_s, high * self.base_s)

    def estimate_cost_s(self, term: Term) -> float:
        """Return the expected coefficient of a term in seconds, averaged over the candidates; 0 without it."""
        total = 0.0
        for each in self.candidates:
            names = (Term.COMPUTE, *each.terms)
            if term in names:
                total += each.weight * float(each.mean[names.index(term)])
        return total * self.base_s

    def _find_quantile(self, centers: Values, scales: Values, p: float) -> float:
        """Find the quantile of the mixture of all candidates by bisection between their own quantiles."""
        # All candidates were fitted to the same counts.
        degrees = self.candidates[0].degrees
        weights = np.array([each.weight for each in self.candidates])
        own = centers + scales * compute_t_quantile(degrees, p)
        low, high = float(own.min()), float(own.max())
        while high - low > _PRECISION * abs(high):
            middle = (low + high) / 2
            below = float(weights @ _compute_t_probabilities(degrees, (middle - centers) / scales))
            low, high = (middle, high) if below < p else (low, middle)
        return (low + high) / 2


def fit_scaling_model(
    steps_s: Mapping[int, Sequence[float]], scaling: Scaling, confidence: float = 0.95
) -> ScalingModel:
    """Fit the model to the step times of each count, one median per process run."""
    counts = tuple(sorted(count for count, values in steps_s.items() if len(values)))
    if len(counts) < MIN_COUNTS:
        reason = f"no model from fewer than {MIN_COUNTS} counts: {len(counts)} measured"
        return ScalingModel(scaling, counts, confidence, reason=reason)
    medians = np.array([median(require_positive(steps_s[count])) for count in counts])
    base_s = float(medians[0])
    error = max(PRIOR_ERROR, *(_estimate_median_error(steps_s[count]) for count in counts))
    fitted = []
    for terms in _CANDIDATES:
        # At least one count more than coefficients, so that the misfit is seen.
        if len(terms) + 1 >= len(counts):
            continue
        levels = counts[1:] if Term.LEVEL in terms else (0,)
        for level in levels:
            # The possible levels share the weight of one candidate.
            log, each = _fit_candidate(counts, medians / base_s, terms, level, scaling, error)
            fitted.append((log - math.log(len(levels)), each))
    kept = [(log, each) for log, each in fitted if _is_physical(each, counts, scaling)]
    top = max(log for log, _ in kept)
    weights = [math.exp(log - top) for log, _ in kept]
    candidates = [
        _Candidate(
            each.terms, each.level, weight / sum(weights), each.mean, each.covariance, each.variance, each.degrees
        )
        for weight, (_, each) in zip(weights, kept, strict=True)
    ]
    return ScalingModel(scaling, counts, confidence, base_s, candidates)


def check_largest_count(
    steps_s: Mapping[int, Sequence[float]], scaling: Scaling, confidence: float = 0.95
) -> HeldOutCheck | None:
    """Predict the largest count from the others and compare; None if too few others are measured."""
    counts = sorted(count for count, values in steps_s.items() if len(values))
    if len(counts) <= MIN_COUNTS:
        return None
    model = fit_scaling_model({count: steps_s[count] for count in counts[:-1]}, scaling, confidence)
    return HeldOutCheck(model.predict(counts[-1]), float(median(steps_s[counts[-1]])))


def _build_rows(counts: Sequence[int], terms: Sequence[Term], scaling: Scaling, base: int, level: int = 0) -> Values:
    """Build the regressors of each count: the work of a rank, then the terms."""
    n = np.array(counts, dtype=np.float64)
    work = np.ones_like(n) if scaling is Scaling.WEAK else base / n
    columns = {
        Term.BANDWIDTH: (n - 1) / n,
        Term.RING_LATENCY: n - 1,
        Term.TREE_LATENCY: np.log2(n),
        Term.ENTRY: np.where(n > 1, 1.0, 0.0),
        Term.LEVEL: np.where(n >= level, 1.0, 0.0),
    }
    return np.column_stack([work, *(columns[term] for term in terms)])


def _fit_candidate(
    counts: Sequence[int], times: Values, terms: tuple[Term, ...], level: int, scaling: Scaling, error: float
) -> tuple[float, _Candidate]:
    """Return the log marginal likelihood and the posterior of one candidate (normal inverse gamma, conjugate).

    Each row is divided by its time, so that errors are relative.
    """
    rows = _build_rows(counts, terms, scaling, counts[0], level) / times[:, None]
    ones = np.ones(len(counts))
    expected = np.array([1.0, *(0.0 for _ in terms)])
    deviations = np.array([1.0, *(PRIOR_COST for _ in terms)])
    prior = np.diag((error / deviations) ** 2)
    precision = rows.T @ rows + prior
    covariance = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    mean = covariance @ (rows.T @ ones + prior @ expected)
    shape, rate = PRIOR_DEGREES / 2, PRIOR_DEGREES * error**2 / 2
    shape_after = shape + len(counts) / 2
    misfit = float(ones @ ones + expected @ prior @ expected - mean @ precision @ mean)
    rate_after = rate + max(0.0, misfit) / 2
    log_likelihood = (
        (np.linalg.slogdet(prior)[1] - np.linalg.slogdet(precision)[1]) / 2
        + shape * math.log(rate)
        - shape_after * math.log(rate_after)
        + math.lgamma(shape_after)
        - math.lgamma(shape)
    )
    variance = rate_after / shape_after
    return float(log_likelihood), _Candidate(terms, level, 0.0, mean, covariance, variance, 2 * shape_after)


def _is_physical(candidate: _Candidate, counts: Sequence[int], scaling: Scaling) -> bool:
    """Return True if costs are positive and overlap hides no more than the compute; always for compute alone."""
    costs = dict(zip(candidate.terms, candidate.mean[1:].tolist(), strict=True))
    hidden = -costs.pop(Term.ENTRY, 0.0)
    work = _build_rows(counts, (), scaling, counts[0])[:, 0]
    return all(cost >= 0 for cost in costs.values()) and hidden <= candidate.mean[0] * float(work.min())


def _estimate_median_error(values: Sequence[float]) -> float:
    """Estimate the relative standard error of a median of near-normal values; 0 for a single one."""
    if len(values) < 2:
        return 0.0
    logs = np.log(require_positive(values))
    # The median of normal values varies more than their mean, by the root of pi / 2.
    return math.sqrt(math.pi / 2 * compute_sample_variance(logs) / logs.size)


def _compute_t_probabilities(degrees: float, t: Values) -> Values:
    """Return P(T < t) for Student's t."""
    tails = compute_t_tail(degrees, np.abs(t))
    return np.where(t > 0, 1 - tails, tails)
