"""Race two entrants with paired samplings: which one is faster, by how much, and when to stop."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from corewise.stats.quantiles import compute_t_quantile
from corewise.tuning.search.arena import Entrant, Sampling

Outcome = Literal["won", "lost", "tied"]
# All differences are log ratios of throughput. Limits named *_SDS are in standard deviations of the noise.
# A smaller gain does not justify one more knob.
MIN_GAIN = 0.01
# With a wider half interval, a simpler challenger must be ahead to win.
USABLE_HALF_WIDTH = 0.03
# After one sampling, a challenger that is behind by more has lost.
CLEAR_LOSS, CLEAR_LOSS_SDS = 0.12, 4.0
# After one sampling, a challenger that is ahead by more has won; the confirmation checks it anyway.
CLEAR_WIN, CLEAR_WIN_SDS = 0.25, 8.0
# A smaller difference is compared with a new sampling of the incumbent, not with earlier ones.
CERTAIN_DIFFERENCE = 0.7
# A race ends early if every comparison differs by more, all in the same direction.
OBVIOUS, OBVIOUS_SDS = 0.08, 4.0
# Rounds of an obvious race; otherwise the least and the most.
MIN_OBVIOUS_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 2, 3, 6
CONFIDENCE = 0.95
# Two-sided confidence: a challenger with less than a 10 % chance of a worthwhile gain is given up.
UNLIKELY = 0.8
# Larger deviations are outliers and are clipped.
OUTLIER_SDS = 5.0
# Prior standard deviation of neighbouring samplings, and its weight in degrees of freedom.
PRIOR_SD, PRIOR_DEGREES = 0.03, 4


@dataclass
class Noise:
    """The noise of paired samplings on this machine, estimated from all races so far."""

    squares: float = PRIOR_DEGREES * PRIOR_SD**2
    degrees: float = PRIOR_DEGREES

    def add_pairs(self, log_ratios: Sequence[float], outlier_sds: float = OUTLIER_SDS) -> None:
        """Add the pairs of one race."""
        if len(log_ratios) > 1:
            # The median is robust against one disturbed pair.
            center = statistics.median(log_ratios)
            largest = outlier_sds * self.sd
            self.squares += sum(min(abs(each - center), largest) ** 2 for each in log_ratios)
            self.degrees += len(log_ratios) - 1

    @property
    def sd(self) -> float:
        return math.sqrt(self.squares / self.degrees)

    def compute_half_width(self, num_pairs: int, pairs: Sequence[float], confidence: float = CONFIDENCE) -> float:
        """Compute half the confidence interval of a mean of `num_pairs` pairs; the noise of `pairs` is added."""
        noise = Noise(self.squares, self.degrees)
        # The outliers of this very race are not clipped.
        noise.add_pairs(pairs, math.inf)
        return float(compute_t_quantile(noise.degrees, (1 + confidence) / 2)) * noise.sd / math.sqrt(num_pairs)


@dataclass(frozen=True)
class Verdict:
    """The result of a race.

    Attributes:
        log_ratio: Log of the throughput ratio to the incumbent; above 0 if the challenger is faster.
        samplings: Those of the challenger.
        log_latency: Log of the latency ratio to the incumbent; above 0 if the challenger is slower.
    """

    outcome: Outcome
    log_ratio: float
    half_width: float
    samplings: tuple[Sampling, ...]
    log_latency: float = 0.0

    @property
    def is_close(self) -> bool:
        """True if there is no significant difference."""
        return abs(self.log_ratio) <= self.half_width


@dataclass
class Racer:
    """An entrant with its samplings so far."""

    entrant: Entrant
    samplings: list[Sampling] = field(default_factory=list)
    has_failed: bool = False

    def take_sample(self) -> float:
        """Take one more sampling and return the log of its throughput."""
        self.has_failed = True
        self.samplings.append(self.entrant.sample())
        self.has_failed = False
        return math.log(self.samplings[-1].throughput)

    def compute_recent_log_rate(self) -> float:
        """Compute the log of its recent throughput."""
        return statistics.median(math.log(each.throughput) for each in self.samplings[-3:])

    def compute_recent_log_latency(self, num: int) -> float:
        """Compute the log of the latency of its last samplings."""
        return statistics.median(math.log(each.latency_s) for each in self.samplings[-num:])


def run_race(
    incumbent: Racer,
    challenger: Entrant,
    noise: Noise,
    *,
    is_simpler: bool = False,
    min_lead: float = 0.0,
    is_late: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Race a challenger against the incumbent until the outcome is clear.

    Args:
        incumbent: The best setting so far.
        challenger: The entrant that is judged.
        noise: The noise of earlier races; this race is added to it.
        is_simpler: Whether the challenger wins a tie; otherwise it needs a gain of MIN_GAIN.
        min_lead: The log ratio by which it must lead in any case; if negative, by which it may be behind.
        is_late: Returns True when no further round may start.
    """
    racer = Racer(challenger)
    first, num_incumbent = racer.take_sample() - incumbent.compute_recent_log_rate(), 3
    # The machine may have changed its speed since the incumbent was sampled.
    if _is_settled(first, noise.sd) and abs(first) < CERTAIN_DIFFERENCE:
        first, num_incumbent = racer.compute_recent_log_rate() - incumbent.take_sample(), 1
    if _is_settled(first, noise.sd):
        is_worse = first < 0
        latency = racer.compute_recent_log_latency(1) - incumbent.compute_recent_log_latency(num_incumbent)
        half = min(noise.compute_half_width(1, ()), abs(first) / 2)
        return Verdict("lost" if is_worse else "won", first, half, tuple(racer.samplings), latency)
    min_gain = min_lead or (0.0 if is_simpler else MIN_GAIN)
    pairs: list[float] = []
    while True:
        pairs.append(_run_round(incumbent, racer, challenger_first=len(pairs) % 2 == 1))
        mean, half = _compute_trimmed_mean(pairs), noise.compute_half_width(len(pairs), pairs)
        unlikely = mean + noise.compute_half_width(len(pairs), pairs, UNLIKELY) < min_gain
        is_clear = unlikely or _is_clear(mean, half, min_gain)
        enough = is_late() or (len(pairs) >= MIN_ROUNDS and (is_clear or len(pairs) == MAX_ROUNDS))
        obvious = len(pairs) == MIN_OBVIOUS_ROUNDS and _is_obvious((first, *pairs), noise.sd)
        if enough or obvious:
            noise.add_pairs(pairs)
            half = min(half, abs(mean) / 2) if obvious else half
            num = len(pairs)
            latency = racer.compute_recent_log_latency(num) - incumbent.compute_recent_log_latency(num)
            if min_lead:
                outcome = _judge_by_lead(mean, half, min_lead)
            else:
                outcome = _judge_outcome(mean, half, min_gain, is_simpler)
            return Verdict(outcome, mean, half, tuple(racer.samplings), latency)


def _is_settled(first: float, sd: float) -> bool:
    """Return whether one sampling is enough to decide."""
    is_worse = first < -max(CLEAR_LOSS, CLEAR_LOSS_SDS * sd)
    return is_worse or first > max(CLEAR_WIN, CLEAR_WIN_SDS * sd)


def _run_round(incumbent: Racer, challenger: Racer, *, challenger_first: bool) -> float:
    """Sample both entrants; the order alternates between rounds, so that drift cancels out."""
    if challenger_first:
        theirs = challenger.take_sample()
        return theirs - incumbent.take_sample()
    ours = incumbent.take_sample()
    return challenger.take_sample() - ours


def _compute_trimmed_mean(pairs: Sequence[float]) -> float:
    """Compute the mean; from three pairs on, without the smallest and the largest one."""
    inner = sorted(pairs)[1:-1] if len(pairs) >= 3 else pairs
    return statistics.fmean(inner)


def _is_obvious(differences: Sequence[float], sd: float) -> bool:
    """Return whether all comparisons so far differ clearly, in the same direction."""
    limit = max(OBVIOUS, OBVIOUS_SDS * sd)
    return min(differences) > limit or max(differences) < -limit


def _is_clear(mean: float, half: float, min_gain: float) -> bool:
    """Return whether more rounds would hardly change the outcome."""
    return mean - half > min_gain or half < MIN_GAIN / 2


def _judge_by_lead(mean: float, half: float, min_lead: float) -> Outcome:
    """Return the outcome of a challenger that needs a minimum lead."""
    if mean > min_lead and (min_lead < 0 or mean > half / 2):
        return "won"
    return "lost" if mean + half < 0 else "tied"


def _judge_outcome(mean: float, half: float, min_gain: float, is_simpler: bool) -> Outcome:
    if mean - half > 0 and mean > min_gain:
        return "won"
    if mean + half < 0:
        return "lost"
    if is_simpler:
        return "won" if mean > max(-MIN_GAIN, half / 2 - USABLE_HALF_WIDTH) else "tied"
    # It is probably ahead; the confirmation decides.
    return "won" if mean > max(2 * MIN_GAIN, half / 2) else "tied"
