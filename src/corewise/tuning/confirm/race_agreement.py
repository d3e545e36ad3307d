"""Compare the fresh runs with the race: a claim that only one of them supports is not made."""

import math

from corewise.text_format import format_ratio
from corewise.tuning.confirm.confirmation_runs import Confirmation
from corewise.tuning.search.judgements import SearchState
from corewise.tuning.search.setting_space import Setting, Space

# Log ratios that differ by this much more than the noise of race and fresh runs disagree.
GAIN_TOLERANCE = 0.1
# Fresh runs of one setting that are slower or faster than its race by more than this factor disagree with it.
RATE_FACTOR = 2.0


def describe_disagreement(space: Space, state: SearchState, confirmation: Confirmation) -> str:
    """Describe how race and fresh runs of the best setting disagree; return an empty text if they agree.

    Both the gain over the default and the rates themselves are compared: a gain from runs that are many times
    slower than those of the search says nothing.
    """
    best, default = state.best, space.default
    compared = confirmation.compare(best, default) if best != default else None
    if compared is None or compared.ratio is None or compared.interval is None:
        return ""
    interval = compared.interval
    half = 0.0
    if interval.low is not None and interval.high is not None:
        half = math.log(interval.high / interval.low) / 2
    race = state.judgements[best]
    is_gain_off = abs(race.score + math.log(compared.ratio)) > race.half_width + half + GAIN_TOLERANCE
    rates = [text for each in (default, best) if (text := _describe_rates(space, state, confirmation, each))]
    if not is_gain_off and not rates:
        return ""
    ends = (None, None) if not half else (1 / (interval.high or 1), 1 / (interval.low or 1))
    gain = (
        f"{space.describe(best)} was {format_ratio(math.exp(race.score))} the default in the search, but "
        f"{format_ratio(1 / compared.ratio, *ends)} in fresh runs"
    )
    return "; ".join((gain, *rates))


def _describe_rates(space: Space, state: SearchState, confirmation: Confirmation, setting: Setting) -> str:
    """Describe the rates of a setting if they differ by more than the factor; else return an empty text."""
    race, record = state.judgements.get(setting), confirmation.records.get(setting)
    if race is None or record is None or not race.throughput or not record.metrics.get("samples_per_s"):
        return ""
    fresh = record.metrics["samples_per_s"]
    if 1 / RATE_FACTOR <= fresh / race.throughput <= RATE_FACTOR:
        return ""
    name = space.describe(setting)
    return f"{name} gave {race.throughput:.3g} samples/s in the search and {fresh:.3g} in fresh runs"
