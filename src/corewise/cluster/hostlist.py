"""Expand the lists of hosts and counts that Slurm writes into its variables.

Travels to the nodes: standard library only, Python 3.9.
"""

from __future__ import annotations

import itertools
import math
import re

# This limit keeps a damaged node list from filling memory.
MAX_HOSTS = 1 << 18


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the host names of a Slurm list like `n[01-03,7],gpu5`, or raise ValueError."""
    hosts: list[str] = []
    for entry in _split_outside_brackets(text.strip()):
        pieces = re.split(r"\[([^\[\]]*)\]", entry)
        if any(bracket in piece for piece in pieces for bracket in "[]"):
            raise ValueError(f"not a host list: {text!r}")
        # Odd pieces were in brackets; the others are literal.
        choices = [_expand_ranges(p) if i % 2 else (p,) for i, p in enumerate(pieces)]
        if len(hosts) + math.prod(len(choice) for choice in choices) > MAX_HOSTS:
            raise ValueError(f"host list too long: {text[:40]!r}...")
        hosts += ["".join(parts) for parts in itertools.product(*choices)]
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """Return the count of each node of a Slurm list like `8(x2),4`, or raise ValueError."""
    counts: list[int] = []
    for entry in text.strip().split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", entry.strip())
        if match is None:
            raise ValueError(f"not a list of counts: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def _split_outside_brackets(text: str) -> list[str]:
    entries = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+", text)
    return [entry.strip() for entry in entries if entry.strip()]


def _expand_ranges(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if match is None:
            raise ValueError(f"not a range of hosts: {text!r}")
        low, high, width = int(match[1]), int(match[2] or match[1]), len(match[1])
        if not low <= high <= low + MAX_HOSTS:
            raise ValueError(f"not a range of hosts: {text!r}")
        names += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return tuple(names)
