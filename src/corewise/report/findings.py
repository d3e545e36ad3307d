"""What stands out in the records of a study: each a claim with its evidence and a command to type."""

from dataclasses import replace

from corewise.report.doubts import DOUBTS
from corewise.report.hints import HINTS, HINTS_OF_TUNINGS
from corewise.report.model import Finding
from corewise.report.studied import Studied

_LEVELS = {"problem": 0, "warning": 1, "info": 2}
_LONGER = "20m"  # twice the usual budget


def findings_of(studied: Studied) -> list[Finding]:
    """The findings of one study or tuning, the gravest first."""
    hints = HINTS_OF_TUNINGS if studied.tuned_by else HINTS
    found = [finding for look in (*DOUBTS, *hints) for finding in look(studied)]
    if studied.tuned_by:
        found = [_of_tuning(finding, studied) for finding in found]
    return sorted(found, key=gravity)


def gravity(finding: Finding) -> int:
    """A key that puts the gravest findings first."""
    return _LEVELS[finding.level]


def _of_tuning(finding: Finding, studied: Studied) -> Finding:
    """The finding with what helps a tuning: its search chooses the settings, its budget the runs."""
    if "`corewise run " not in finding.remedy:
        return finding
    if finding.level == "problem":
        again = studied.tuned_again()
        return replace(finding, remedy=f"Mend the cause and tune again, which measures what failed: {again}.")
    again = studied.tuned_again("--budget", _LONGER, store="quiet-store")
    return replace(
        finding, remedy=f"Tune again on a quiet machine, with more time and into a new store: {again}."
    )
