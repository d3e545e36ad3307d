"""Check the parameters of primitives.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import difflib
from typing import Any, Dict, Mapping, Sequence

from corewise.measured.workloads.primitives.problem_notation import LARGEST


def fill_defaults(name: str, args: Mapping[str, Any], defaults: Mapping[str, Any]) -> Dict[str, Any]:
    """Return all parameters with defaults filled in; raise ValueError for an unknown one."""
    for arg in args:
        if arg not in defaults:
            near = difflib.get_close_matches(arg, defaults, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{name} has no parameter {arg!r}; {hint}it has {', '.join(defaults)}")
    return {**defaults, **args}


def require_choice(name: str, arg: str, value: Any, choices: Sequence[str]) -> str:
    """Return the value; raise ValueError unless it is one of the choices."""
    if value not in choices:
        near = difflib.get_close_matches(str(value).upper(), choices, n=1) or difflib.get_close_matches(
            str(value), choices, n=1
        )
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}: {arg} must be one of {', '.join(choices)}, not {value!r}{hint}")
    return str(value)


def require_whole_number(name: str, arg: str, value: Any) -> int:
    """Return the value; raise ValueError unless it is a whole number from 0 to the largest size."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: {arg} must be a whole number of at least 0, not {value!r}")
    if value > LARGEST:
        raise ValueError(f"{name}: {arg} is larger than any memory; the maximum is {LARGEST}")
    return value
