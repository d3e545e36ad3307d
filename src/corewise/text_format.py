"""Format figures, names and lists for people, in a terminal and on a page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_NAME_LENGTH = 48
# Looks like a backtick but is no markup. The page replaces it with a real one.
PLAIN_BACKTICK = "\u02cb"


def format_number(value: float | None) -> str:
    """Format a number with four significant digits: 0.01230, 18.30, 1,234."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    decimals = _count_decimals(value, 4)
    if decimals > 7:
        return f"{value:.3g}"
    return f"{value:,.{max(0, decimals)}f}"


def format_duration(seconds: float | None, digits: int = 3) -> str:
    """Format a duration with the given significant digits: 1.23 s, 432 ms, 5.67 µs."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{_format_significant(seconds / size, digits)} {unit}"
    return f"{seconds * 1e9:.{digits}g} ns"


def format_memory(num_bytes: float | None) -> str:
    """Format an amount of memory with three significant digits: 3.00 GiB."""
    if num_bytes is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{_format_significant(num_bytes / size, 3)} {unit}"
    return f"{num_bytes:.0f} B"


def format_percent(share: float | None) -> str:
    """Format a fraction as a percentage with one decimal, without the sign."""
    return "-" if share is None else f"{100 * share:.1f}"


def format_parameter_name(name: str) -> str:
    """Format the name of a parameter; workload arguments lose their prefix."""
    return clean_text(name.removeprefix("args."))


def format_parameters(params: Mapping[str, Any]) -> str:
    """Format parameters in one line."""
    return " ".join(f"{format_parameter_name(name)}={format_value(value)}" for name, value in params.items())


def format_value(value: Any) -> str:
    """Format the value of a parameter."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else clean_text(str(value))


def clean_text(text: str) -> str:
    """Join the text into one line without terminal control characters."""
    return replace_unprintable(" ".join(text.split()))


def replace_unprintable(text: str) -> str:
    """Replace every unprintable character with its escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def has_caret_line(reason: str) -> bool:
    """Return whether the last line of the reason is a caret that points into the line above."""
    lines = reason.splitlines()
    return len(lines) > 2 and lines[-1].strip() == "^"


def shorten(text: str, max_length: int = _MAX_NAME_LENGTH) -> str:
    """Join the text into one line and cut its middle out if it exceeds `max_length`."""
    text = clean_text(text)
    if len(text) <= max_length:
        return text
    head = (max_length - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - max_length :]}"


def format_figure(
    value: float, low: float | None = None, high: float | None = None, unit: str = "", confidence: float | None = None
) -> str:
    """Format a number with its interval, in as many digits as the interval allows.

    Returns:
        "26.4 images/s (23.7 to 29.3)", or with `confidence` "26.4 images/s (95 % interval 23.7–29.3)".
    """
    decimals = max(0, _count_decimals(value, 3)) if value else 0
    unit = f" {unit}" if unit else ""
    ends = _select_finite_interval(low, high)
    if ends is None:
        return f"{value:,.{decimals}f}{unit}"
    width = ends[1] - ends[0]
    if 0 < width < abs(value) * 0.01:
        decimals = min(decimals + 2, max(decimals, _count_decimals(width, 1)))
    first, last = (f"{end:,.{decimals}f}" for end in ends)
    interval = f"{first} to {last}" if confidence is None else f"{100 * confidence:g} % interval {first}–{last}"
    return f"{value:,.{decimals}f}{unit} ({interval})"


def format_fraction(value: float, low: float | None = None, high: float | None = None) -> str:
    """Format an efficiency with its interval: 0.53 (0.48 to 0.57)."""
    ends = _select_finite_interval(low, high)
    return f"{value:.2f}" if ends is None else f"{value:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


def format_ratio(value: float, low: float | None = None, high: float | None = None) -> str:
    """Format a ratio with its interval: 1.31× (1.27 to 1.35)."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    ends = _select_finite_interval(low, high)
    text = f"{value:,.{decimals}f}×"
    return text if ends is None else f"{text} ({ends[0]:,.{decimals}f} to {ends[1]:,.{decimals}f})"


def format_share(value: float, low: float | None = None, high: float | None = None) -> str:
    """Format a share in whole per cent with its interval: 64 % (50 to 82)."""
    ends = _select_finite_interval(low, high)
    text = f"{100 * value:.0f} %"
    return text if ends is None else f"{text} ({100 * ends[0]:.0f} to {100 * ends[1]:.0f})"


def format_count(num: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: 1 trial, 20 trials."""
    return f"{num:,} {noun if num == 1 else plural or noun + 's'}"


def format_list(items: Sequence[str], max_items: int = 3, conjunction: str = "and") -> str:
    """Format items as a list in a sentence; those beyond `max_items` are only counted."""
    if len(items) > max_items:
        return f"{', '.join(items[:max_items])} {conjunction} {len(items) - max_items:,} more"
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {conjunction} {items[-1]}"


def round_significant(value: float | None, digits: int = 6) -> float | None:
    """Round a number to the given significant digits, which keeps files small; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _select_finite_interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return low, high


def _format_significant(value: float, digits: int) -> str:
    return f"{value:.{max(0, _count_decimals(value, digits))}f}"


def _count_decimals(value: float, digits: int) -> int:
    """Count the decimals of the given significant digits; the exponent is that of the rounded value."""
    return digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
