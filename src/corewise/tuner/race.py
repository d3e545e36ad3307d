"""Two entrants in turns: is the challenger better, by how much, and when is it plain enough to stop?"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from corewise.stats.quantiles import t_quantile
from corewise.tuner.arena import Entrant, Sampling

Outcome = Literal["won", "lost", "tied"]
WORTH = 0.01  # of throughput: less is no reason for one more knob
KNOWN = 0.03  # half an interval this wide says little: a simpler challenger must then be ahead to win
CLEARLY_WORSE = 0.12  # behind by this much after one sampling, and by so many standard deviations
CLEARLY_WORSE_SDS = 4.0
CLEARLY_BETTER, CLEARLY_BETTER_SDS = 0.25, 8.0  # ahead by this much after one sampling: fresh runs will tell
BEYOND_DOUBT = 0.7  # apart by less than this, one sampling is judged by one beside it, not by earlier ones
OBVIOUS, OBVIOUS_SDS = 0.08, 4.0  # apart by this much in every comparison, and by so many standard deviations
FEWEST_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 2, 3, 6  # where it is obvious; otherwise at least and at most
CONFIDENCE = 0.95
UNLIKELY = 0.8  # two-sided: with one chance in ten of being worth it, a challenger is not raced any longer
FORGIVEN_SDS = 5.0  # what differs by more was disturbed and says little of the next pair
PRIOR_SD, PRIOR_DEGREES = 0.03, 4  # what neighbouring samplings usually differ by, before any is seen


@dataclass
class Noise:
    """How much pairs of samplings scatter here, learnt from all races so far."""

    squares: float = PRIOR_DEGREES * PRIOR_SD**2
    degrees: float = PRIOR_DEGREES

    def learn(self, log_ratios: Sequence[float], forgiven_sds: float = FORGIVEN_SDS) -> None:
        """Take in the pairs of one race."""
        if len(log_ratios) > 1:
            center = statistics.median(log_ratios)  # one disturbed pair shall not move it
            largest = forgiven_sds * self.sd
            self.squares += sum(min(abs(each - center), largest) ** 2 for each in log_ratios)
            self.degrees += len(log_ratios) - 1

    @property
    def sd(self) -> float:
        return math.sqrt(self.squares / self.degrees)

    def half_width(self, num_pairs: int, own: Sequence[float], confidence: float = CONFIDENCE) -> float:
        """Half the interval of a mean of so many pairs; their own scatter counts with the rest."""
        mine = Noise(self.squares, self.degrees)
        mine.learn(own, math.inf)  # this race is as uncertain as its own pairs are apart
        return float(t_quantile(mine.degrees, (1 + confidence) / 2)) * mine.sd / math.sqrt(num_pairs)


@dataclass(frozen=True)
class Verdict:
    """How a challenger did against the incumbent; `log_ratio` above 0: it was faster."""

    outcome: Outcome
    log_ratio: float
    half_width: float
    samplings: tuple[Sampling, ...]  # the challenger's
    log_latency: float = 0.0  # of its latency over the incumbent's; above 0: slower to answer

    @property
    def is_close(self) -> bool:
        """True when a difference was not shown."""
        return abs(self.log_ratio) <= self.half_width


@dataclass
class Racer:
    """An entrant with what it has shown so far."""

    entrant: Entrant
    samplings: list[Sampling] = field(default_factory=list)
    has_failed: bool = False

    def run(self) -> float:
        """The logarithm of the throughput of one more sampling."""
        self.has_failed = True
        self.samplings.append(self.entrant.sample())
        self.has_failed = False
        return math.log(self.samplings[-1].throughput)

    def recent(self) -> float:
        """What it lately did, as a logarithm."""
        return statistics.median(math.log(each.throughput) for each in self.samplings[-3:])

    def recent_latency(self, num: int) -> float:
        """The latency of its last samplings, as a logarithm."""
        return statistics.median(math.log(each.latency_s) for each in self.samplings[-num:])


def race(
    incumbent: Racer,
    challenger: Entrant,
    noise: Noise,
    *,
    is_simpler: bool = False,
    least_lead: float = 0.0,
    is_late: Callable[[], bool] = lambda: False,
) -> Verdict:
    """The verdict on a challenger; a simpler one wins a tie, another must be ahead by what is worth it.

    least_lead: what it must be ahead by in any case, simpler or not; below 0, what it may be behind by. Once
    `is_late` says so, no further round is begun: little time is left for those that were not yet tried.
    """
    racer = Racer(challenger)
    first, num_beside = racer.run() - incumbent.recent(), 3
    if _settles(first, noise.sd) and abs(first) < BEYOND_DOUBT:  # the machine may have changed its pace
        first, num_beside = racer.recent() - incumbent.run(), 1
    if _settles(first, noise.sd):
        is_worse = first < 0
        latency = racer.recent_latency(1) - incumbent.recent_latency(num_beside)
        half = min(noise.half_width(1, ()), abs(first) / 2)
        return Verdict("lost" if is_worse else "won", first, half, tuple(racer.samplings), latency)
    worth = least_lead or (0.0 if is_simpler else WORTH)
    pairs: list[float] = []
    while True:
        pairs.append(_round(incumbent, racer, challenger_first=len(pairs) % 2 == 1))
        mean, half = _mean(pairs), noise.half_width(len(pairs), pairs)
        unlikely = mean + noise.half_width(len(pairs), pairs, UNLIKELY) < worth
        plain = unlikely or _is_plain(mean, half, worth)
        enough = is_late() or (len(pairs) >= MIN_ROUNDS and (plain or len(pairs) == MAX_ROUNDS))
        obvious = len(pairs) == FEWEST_ROUNDS and _is_obvious((first, *pairs), noise.sd)
        if enough or obvious:
            noise.learn(pairs)
            half = min(half, abs(mean) / 2) if obvious else half
            latency = racer.recent_latency(len(pairs)) - incumbent.recent_latency(len(pairs))
            outcome = _by_lead(mean, half, worth) if least_lead else _outcome(mean, half, worth, is_simpler)
            return Verdict(outcome, mean, half, tuple(racer.samplings), latency)


def _settles(first: float, sd: float) -> bool:
    """True when one sampling says enough."""
    is_worse = first < -max(CLEARLY_WORSE, CLEARLY_WORSE_SDS * sd)
    return is_worse or first > max(CLEARLY_BETTER, CLEARLY_BETTER_SDS * sd)


def _round(incumbent: Racer, challenger: Racer, *, challenger_first: bool) -> float:
    """One sampling of each, the order changing from round to round so that drift falls on both."""
    if challenger_first:
        theirs = challenger.run()
        return theirs - incumbent.run()
    ours = incumbent.run()
    return challenger.run() - ours


def _mean(pairs: Sequence[float]) -> float:
    """The mean of the pairs without the two outermost, from three pairs on: one disturbance is forgiven."""
    kept = sorted(pairs)[1:-1] if len(pairs) >= 3 else pairs
    return statistics.fmean(kept)


def _is_obvious(found: Sequence[float], sd: float) -> bool:
    """True when every comparison so far says the same, and none of them by little."""
    least = max(OBVIOUS, OBVIOUS_SDS * sd)
    return min(found) > least or max(found) < -least


def _is_plain(mean: float, half: float, worth: float) -> bool:
    """True when more rounds would hardly change the outcome."""
    return mean - half > worth or half < WORTH / 2


def _by_lead(mean: float, half: float, least_lead: float) -> Outcome:
    """Whether it is likely ahead by as much as it must be."""
    if mean > least_lead and (least_lead < 0 or mean > half / 2):
        return "won"
    return "lost" if mean + half < 0 else "tied"


def _outcome(mean: float, half: float, worth: float, is_simpler: bool) -> Outcome:
    if mean - half > 0 and mean > worth:
        return "won"
    if mean + half < 0:
        return "lost"
    if is_simpler:
        return "won" if mean > max(-WORTH, half / 2 - KNOWN) else "tied"
    return "won" if mean > max(2 * WORTH, half / 2) else "tied"  # likely ahead: the fresh runs will tell
