"""Problems that ship with Corewise, named `FILE:NUMBER` with numbers from 1.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Tuple

from corewise.measured.workloads.primitives.problem_notation import ProblemError, parse_size

PACKAGE = "corewise.measured.workloads.primitives.problems"
SUFFIX = ".txt"
_NAMED = re.compile(r"([A-Za-z][\w-]*):([0-9]+)")


@functools.cache
def load_shipped_problems(name: str) -> Tuple[str, ...]:
    """Return the problems of a shipped file, in order."""
    if name not in list_shipped_names():
        raise ProblemError(f"unknown problem file {name!r}; known files: {', '.join(list_shipped_names())}")
    text = resources.files(PACKAGE).joinpath(name + SUFFIX).read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def list_shipped_names() -> Tuple[str, ...]:
    """Return the names of the shipped files."""
    # This also works in a zip archive.
    files = (entry.name for entry in resources.files(PACKAGE).iterdir())
    return tuple(sorted(name[: -len(SUFFIX)] for name in files if name.endswith(SUFFIX)))


def resolve_problem_text(given: str) -> str:
    """Return the problem string, or the shipped problem that it names, for example `pytorch-cpus:7`."""
    named = _NAMED.fullmatch(given.strip())
    if named is None:
        name, colon, rest = given.strip().partition(":")
        if colon and name in list_shipped_names():
            raise ProblemError(f"{name} has problems 1 to {len(load_shipped_problems(name))}, not {rest!r}")
        return given.strip()
    name, number = named.group(1), parse_size(named.group(), named.start(2), named.group(2))
    problems = load_shipped_problems(name)
    if not 1 <= number <= len(problems):
        raise ProblemError(f"{name} has problems 1 to {len(problems)}, not {number}")
    return problems[number - 1]
