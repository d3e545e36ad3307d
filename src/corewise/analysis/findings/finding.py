"""A finding: a claim with its evidence and its remedy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim with its evidence and its remedy."""

    level: Literal["info", "warning", "problem"]
    title: str
    evidence: str = ""
    remedy: str = ""
