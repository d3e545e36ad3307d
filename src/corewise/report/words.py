"""Figures and names as people read them, in a terminal and on a page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST_NAME = 48


def number(value: float | None) -> str:
    """A number with four significant digits and no more than it needs: 0.01230, 18.30, 1,234."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = _num_decimals(value, 4)
    if decimals > 7:
        return f"{value:.3g}"
    return f"{value:,.{max(0, decimals)}f}"


def duration(seconds: float | None, digits: int = 3) -> str:
    """A duration with so many significant digits: 1.23 s, 432 ms, 5.67 µs."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{_significant(seconds / size, digits)} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns"


def memory(num_bytes: float | None) -> str:
    """An amount of memory with three significant digits: 3.00 GiB."""
    if num_bytes is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{_significant(num_bytes / size, 3)} {unit}"
    return f"{num_bytes:.0f} B"


def percent(share: float | None) -> str:
    """A share in per cent with one digit after the point."""
    return "-" if share is None else f"{100 * share:.1f}"


def named(name: str) -> str:
    """A parameter's name as shown: a workload's own parameters without their prefix."""
    return clean(name.removeprefix("args."))


def point(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return " ".join(f"{named(name)}={shown(value)}" for name, value in params.items())


def shown(value: Any) -> str:
    """A parameter's value as shown."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else clean(str(value))


def clean(text: str) -> str:
    """The text in one line, with nothing in it that could steer a terminal."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """The text with every character that does not print written out, its spaces as they are."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def is_pointing(reason: str) -> bool:
    """True of a reason whose last line points at a place in the line above it."""
    lines = reason.splitlines()
    return len(lines) > 2 and lines[-1].strip() == "^"


def short(text: str, longest: int = _LONGEST_NAME) -> str:
    """The text in one line, its middle left out where it is too long to stand in a sentence."""
    text = clean(text)
    if len(text) <= longest:
        return text
    head = (longest - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - longest :]}"


def figure(value: float, low: float | None = None, high: float | None = None, unit: str = "") -> str:
    """A number with its interval, 26.4 images/s (23.7 to 29.3), in as many digits as the interval allows."""
    decimals = max(0, _num_decimals(value, 3)) if value else 0
    unit = f" {unit}" if unit else ""
    ends = _ends(low, high)
    if ends is None:
        return f"{value:,.{decimals}f}{unit}"
    width = ends[1] - ends[0]
    if 0 < width < abs(value) * 0.01:
        decimals = min(decimals + 2, max(decimals, _num_decimals(width, 1)))
    return f"{value:,.{decimals}f}{unit} ({ends[0]:,.{decimals}f} to {ends[1]:,.{decimals}f})"


def fraction(value: float, low: float | None = None, high: float | None = None) -> str:
    """An efficiency with its interval: 0.53 (0.48 to 0.57)."""
    ends = _ends(low, high)
    return f"{value:.2f}" if ends is None else f"{value:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


def times(value: float, low: float | None = None, high: float | None = None) -> str:
    """A ratio with its interval: 1.31× (1.27 to 1.35)."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    ends = _ends(low, high)
    text = f"{value:,.{decimals}f}×"
    return text if ends is None else f"{text} ({ends[0]:,.{decimals}f} to {ends[1]:,.{decimals}f})"


def share(value: float, low: float | None = None, high: float | None = None) -> str:
    """A share in whole per cent with its interval: 64 % (50 to 82)."""
    ends = _ends(low, high)
    text = f"{100 * value:.0f} %"
    return text if ends is None else f"{text} ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})"


def counted(num: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 trial, 20 trials."""
    return f"{num:,} {noun if num == 1 else plural or noun + 's'}"


def listed(words: Sequence[str], most: int = 3, last: str = "and") -> str:
    """Words as a list in a sentence, those beyond `most` only counted."""
    if len(words) > most:
        return f"{', '.join(words[:most])} {last} {len(words) - most:,} more"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def rounded(value: float | None, digits: int = 6) -> float | None:
    """The number with so many significant digits, None where there is none: small in a file."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _ends(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return low, high


def _significant(value: float, digits: int) -> str:
    return f"{value:.{max(0, _num_decimals(value, digits))}f}"


def _num_decimals(value: float, digits: int) -> int:
    """How many decimals leave so many significant digits; the exponent is that of the rounded value."""
    return digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
