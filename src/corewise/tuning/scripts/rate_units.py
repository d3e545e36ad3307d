"""Units of rates and times next to a printed number, such as `12.3 img/s`, `45ms` or `ms/batch 45`."""

import re
from dataclasses import dataclass

_SECONDS = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "msec", "msecs", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
}
_STEPS = (
    "it",
    "its",
    "iter",
    "iters",
    "iteration",
    "iterations",
    "step",
    "steps",
    "batch",
    "batches",
    "update",
    "updates",
)
_SAMPLES = (
    *("img", "imgs", "image", "images", "sample", "samples", "ex", "example", "examples", "row", "rows"),
    *("tok", "toks", "token", "tokens", "seq", "seqs", "sequence", "sequences", "word", "words", "frame", "frames"),
)
_PREFIXES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}

_TIME = "(?P<time>" + "|".join(sorted(_SECONDS, key=len, reverse=True)) + ")"
_PER = r"(?:\s*/\s*|\s+per\s+|_per_)"
# A time, or a time per something, as in s/it.
_TIME_UNIT = rf"{_TIME}(?:{_PER}(?P<per>[A-Za-z]+))?(?![A-Za-z])"
# Something per second, as in img/s. `si` is a prefix of the number, as in 12.3k tokens/s.
_RATE_UNIT = rf"(?:(?P<si>[kKMG])\s+)?(?:(?P<what>[A-Za-z]+){_PER}|/\s*)s(?:ec(?:ond)?s?)?(?![A-Za-z])"
_UNIT = re.compile(rf"\s*(?:{_RATE_UNIT}|{_TIME_UNIT})")
# Before the number, a plain "s" or "ms" is no unit: it may end any other text.
_LABEL_END = r"[\"')\]]*\s*[:=]?\s*[\"']?$"
_RATE_LABEL = re.compile(rf"(?<![A-Za-z]){_RATE_UNIT}{_LABEL_END}")
_TIME_LABEL = re.compile(
    rf"(?<![A-Za-z]){_TIME}{_PER}(?P<per>[A-Za-z]+){_LABEL_END}|\({_TIME.replace('time', 'alone')}\)\s*[:=]?\s*$"
)
_TIME_WORD = re.compile(r"(?<![A-Za-z])(?P<word>time|latency|elapsed|duration|took|dt)\s*[:=]?\s*$", re.IGNORECASE)


@dataclass(frozen=True)
class Unit:
    """The unit of a printed number.

    Attributes:
        text: As it is printed; empty if nothing next to the number says its unit.
        is_time: Whether it is a time; otherwise it is a rate.
        factor: Seconds of a time, or the factor of a rate, as 1000 of `k tokens/s`.
        noun: What is counted: steps, samples, tokens and so on.
        is_inverse_rate: Whether it is a time per something, like s/it: tools print it in place of a low rate.
        is_word: Whether it is only a word like "time", without a unit; seconds are assumed.
    """

    text: str
    is_time: bool
    factor: float = 1.0
    noun: str = "samples"
    is_inverse_rate: bool = False
    is_word: bool = False

    @property
    def counts_steps(self) -> bool:
        """Whether it counts steps, whose size changes with the batch."""
        return self.noun == "steps"

    def convert_to_rate(self, value: float) -> float:
        """Convert a number above 0 with this unit to a rate per second."""
        return 1 / (value * self.factor) if self.is_time else value * self.factor


def find_unit(before: str, after: str) -> Unit | None:
    """Find the unit of a number by the text of its line before and after it; None if there is none."""
    match = _UNIT.match(after)
    if match:
        return _build_rate(match) if match["time"] is None else _build_time(match[0], match["time"], match["per"])
    match = _RATE_LABEL.search(before)
    if match:
        return _build_rate(match)
    match = _TIME_LABEL.search(before)
    if match:
        return _build_time(match[0], match["time"] or match["alone"], match["per"])
    match = _TIME_WORD.search(before)
    return Unit(match["word"], is_time=True, noun="steps", is_word=True) if match else None


def _build_time(text: str, time: str, per: str | None) -> Unit:
    noun = _name_noun(per) if per else "steps"
    return Unit(text.strip(" \t:=\"'()[]"), True, _SECONDS[time], noun, is_inverse_rate=per is not None)


def _build_rate(match: re.Match[str]) -> Unit:
    what, factor = match["what"] or "", 1.0
    if match["si"]:
        factor = _PREFIXES[match["si"]]
    elif what[:1] in _PREFIXES and what[1:] in (*_STEPS, *_SAMPLES, "B"):
        factor, what = _PREFIXES[what[0]], what[1:]
    return Unit(match[0].strip(" \t:=\"'()[]"), False, factor, _name_noun(what))


def _name_noun(what: str) -> str:
    word = what.lower()
    if word in _STEPS:
        return "steps"
    if word.startswith("tok"):
        return "tokens"
    return "images" if word.startswith(("img", "image")) else "samples"
