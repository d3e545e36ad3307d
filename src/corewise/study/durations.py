"""Durations as people write and read them."""

import re

from corewise.errors import UserError

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|min|s|m|h)", re.IGNORECASE)


def parse_duration_s(text: str | float, option: str, *, allow_zero: bool = False) -> float:
    """Return the seconds in `10m`, `90s`, `500ms`, `1h30m` or a plain number of seconds.

    Raises a UserError that names the option for any other text.
    """
    given = str(text).strip()
    try:
        seconds = float(given)
    except ValueError:
        parts = _PART.findall(given)
        if not parts or _PART.sub("", given).strip():
            raise UserError(f"{option} {text}: not a duration; write 10m, 90s or 1h30m") from None
        seconds = sum(float(number) * _UNIT_SECONDS[unit.lower()] for number, unit in parts)
    if not 0 <= seconds < 1e8 or (not seconds and not allow_zero):
        raise UserError(f"{option} {text}: the duration must be above 0, for example 10m or 90s")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: 0.25 s, 45 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{seconds:.2g} s" if 0 < seconds < 1 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
