"""Problems that come with Corewise, found as `FILE:NUMBER`, numbers from 1.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Tuple

from corewise.workloads.primitives.descriptor import ProblemError, size_in

PACKAGE = "corewise.workloads.primitives.problems"
SUFFIX = ".txt"
_NAMED = re.compile(r"([A-Za-z][\w-]*):([0-9]+)")


@functools.cache
def shipped_problems(name: str) -> Tuple[str, ...]:
    """The problems of a file that comes with Corewise, in its order."""
    if name not in shipped_names():
        raise ProblemError(f"no problems are called {name!r}; there are {', '.join(shipped_names())}")
    text = resources.files(PACKAGE).joinpath(name + SUFFIX).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def shipped_names() -> Tuple[str, ...]:
    """The names of the files."""
    files = (entry.name for entry in resources.files(PACKAGE).iterdir())  # also in a zip archive
    return tuple(sorted(name[: -len(SUFFIX)] for name in files if name.endswith(SUFFIX)))


def problem_text(given: str) -> str:
    """The problem string meant: the one given, or the shipped one it names as in `pytorch-cpus:7`."""
    named = _NAMED.fullmatch(given.strip())
    if named is None:
        name, colon, rest = given.strip().partition(":")
        if colon and name in shipped_names():
            raise ProblemError(f"{name} has the problems 1 to {len(shipped_problems(name))}, no {rest!r}")
        return given.strip()
    name, number = named.group(1), size_in(named.group(), named.start(2), named.group(2))
    problems = shipped_problems(name)
    if not 1 <= number <= len(problems):
        raise ProblemError(f"{name} has the problems 1 to {len(problems)}, no {number}")
    return problems[number - 1]
