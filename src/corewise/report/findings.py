"""What stands out in the records of a study: each a claim with its evidence and a command to type."""

from corewise.report.doubts import DOUBTS
from corewise.report.hints import HINTS
from corewise.report.model import Finding
from corewise.report.studied import Studied

_LEVELS = {"problem": 0, "warning": 1, "info": 2}


def findings_of(studied: Studied) -> list[Finding]:
    """The findings of one study, the gravest first."""
    return sorted((finding for look in (*DOUBTS, *HINTS) for finding in look(studied)), key=gravity)


def gravity(finding: Finding) -> int:
    """A key that puts the gravest findings first."""
    return _LEVELS[finding.level]
