"""Durations as people write and say them."""

import re

from corewise.spec.errors import UserError

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h)", re.IGNORECASE)


def read_duration(text: str | float, option: str = "--budget") -> float:
    """Seconds of `10m`, `90s`, `1h30m` or a plain number of seconds."""
    given = str(text).strip()
    try:
        seconds = float(given)
    except ValueError:
        parts = _PART.findall(given)
        if not parts or _PART.sub("", given).strip():
            raise UserError(f"{option} {text}: write it as 10m, 90s or 1h30m") from None
        seconds = sum(float(number) * _UNITS[unit.lower()] for number, unit in parts)
    if not 0 < seconds < 1e8:
        raise UserError(f"{option} {text}: needs a time above 0, as in 10m or 90s")
    return seconds


def spoken(seconds: float) -> str:
    """A duration in its two largest units: 45 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s" if seconds >= 1 or not seconds else f"{seconds:.2g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
