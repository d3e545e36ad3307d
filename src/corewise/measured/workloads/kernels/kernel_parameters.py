"""Read a kernel's parameters: fill in defaults and reject invalid values with the allowed ones.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence


def fill_defaults(name: str, known: Mapping[str, Any], args: Mapping[str, Any]) -> Dict[str, Any]:
    """Return all parameters of a kernel; raise ValueError for one that it does not have."""
    unknown = [each for each in args if each not in known]
    if unknown:
        raise ValueError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return {**known, **args}


def read_whole_number(name: str, args: Mapping[str, Any], parameter: str, least: int = 1) -> int:
    """Return a parameter's value; raise ValueError unless it is a whole number of at least `least`."""
    value = args[parameter]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {parameter} must be a whole number of at least {least}, not {value!r}")
    return value


def read_choice(name: str, args: Mapping[str, Any], parameter: str, choices: Sequence[str]) -> str:
    """Return a parameter's value; raise ValueError unless it is one of the choices."""
    value = args[parameter]
    if value not in choices:
        raise ValueError(f"{name}: {parameter} must be one of {', '.join(choices)}, not {value!r}")
    return str(value)
