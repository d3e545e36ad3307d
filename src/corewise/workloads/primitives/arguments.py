"""A primitive's own parameters, checked the same way for all of them.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import difflib
from typing import Any, Dict, Mapping, Sequence

from corewise.workloads.primitives.descriptor import LARGEST


def known_args(name: str, args: Mapping[str, Any], defaults: Mapping[str, Any]) -> Dict[str, Any]:
    """The parameters with their defaults; ValueError for one that does not exist."""
    for arg in args:
        if arg not in defaults:
            near = difflib.get_close_matches(arg, defaults, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{name} has no parameter {arg!r}; {hint}it has {', '.join(defaults)}")
    return {**defaults, **args}


def chosen(name: str, arg: str, value: Any, choices: Sequence[str]) -> str:
    """The value, if it is one of the choices."""
    if value not in choices:
        near = difflib.get_close_matches(str(value).upper(), choices, n=1) or difflib.get_close_matches(
            str(value), choices, n=1
        )
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}: {arg} is one of {', '.join(choices)}, not {value!r}{hint}")
    return str(value)


def whole_number(name: str, arg: str, value: Any) -> int:
    """The value, if it counts something."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: {arg} must be a whole number of at least 0, not {value!r}")
    if value > LARGEST:
        raise ValueError(f"{name}: {arg} is larger than any memory; it is at most {LARGEST}")
    return value
