"""Reading a kernel's own parameters: defaults filled in, mistakes told with what is allowed.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence


def with_defaults(name: str, known: Mapping[str, Any], args: Mapping[str, Any]) -> Dict[str, Any]:
    """All parameters of the kernel of that name; ValueError where one is given that it does not have."""
    unknown = [each for each in args if each not in known]
    if unknown:
        raise ValueError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    return {**known, **args}


def whole_number(name: str, args: Mapping[str, Any], parameter: str, least: int = 1) -> int:
    """The parameter's value; ValueError unless it is a whole number of at least so much."""
    value = args[parameter]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {parameter} must be a whole number of at least {least}, not {value!r}")
    return value


def one_of(name: str, args: Mapping[str, Any], parameter: str, words: Sequence[str]) -> str:
    """The parameter's value; ValueError unless it is one of the words."""
    value = args[parameter]
    if value not in words:
        raise ValueError(f"{name}: {parameter} must be one of {', '.join(words)}, not {value!r}")
    return str(value)
