"""Collect the findings of a study: claims with evidence and a command to type."""

from dataclasses import replace

from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.reliability_findings import RELIABILITY_CHECKS
from corewise.analysis.findings.speedup_findings import SPEEDUP_CHECKS, TUNING_SPEEDUP_CHECKS
from corewise.analysis.findings.study_evidence import StudyEvidence

_LEVELS = {"problem": 0, "warning": 1, "info": 2}
# Twice the default budget of a tuning.
_LONGER_BUDGET = "20m"


def collect_findings(study: StudyEvidence) -> list[Finding]:
    """Collect the findings of one study or tuning, the most severe first."""
    speedup_checks = TUNING_SPEEDUP_CHECKS if study.tuned_by else SPEEDUP_CHECKS
    findings = [finding for check in (*RELIABILITY_CHECKS, *speedup_checks) for finding in check(study)]
    if study.tuned_by:
        findings = [_replace_remedy(finding, study) for finding in findings]
    return sorted(findings, key=get_severity_rank)


def get_severity_rank(finding: Finding) -> int:
    """Return a key that puts the most severe findings first."""
    return _LEVELS[finding.level]


def _replace_remedy(finding: Finding, study: StudyEvidence) -> Finding:
    """Replace a remedy that runs a study: a tuning chooses settings and runs by its search and budget."""
    if "`corewise run " not in finding.remedy:
        return finding
    if finding.level == "problem":
        again = study.build_tune_command()
        return replace(finding, remedy=f"Fix the cause, then tune again to measure the failed trials: {again}.")
    again = study.build_tune_command("--budget", _LONGER_BUDGET, store="quiet-store")
    return replace(finding, remedy=f"Tune again on a quiet machine, with a longer budget and a new store: {again}.")
