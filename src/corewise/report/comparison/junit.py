"""Renders a comparison as JUnit XML for CI systems: one test case per trial."""

import re
from collections.abc import Collection, Iterator
from xml.etree.ElementTree import Element, SubElement, tostring

from corewise.analysis.comparison.comparison_model import ComparedTrial, StoreComparison
from corewise.report.comparison.sentences import describe_disturbances

_SUITE = "corewise compare"
# Characters that XML 1.0 cannot hold even escaped, and lone surrogates, which cannot be encoded.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit_xml(comparison: StoreComparison, fail_on: Collection[str]) -> bytes:
    """Render the XML. A case fails on the verdicts in `fail_on`; one without a verdict is skipped."""
    cases = list(_build_cases(comparison, fail_on))
    tags = [child.tag for case in cases for child in case]
    counts = {
        "name": _SUITE,
        "tests": str(len(cases)),
        "failures": str(tags.count("failure")),
        "errors": "0",
        "skipped": str(tags.count("skipped")),
    }
    root = Element("testsuites", counts)
    suite = SubElement(root, "testsuite", {**counts, "time": "0"})
    properties = SubElement(suite, "properties")
    for name, value in _list_properties(comparison):
        SubElement(properties, "property", name=_clean_text(name), value=_clean_text(value))
    suite.extend(cases)
    SubElement(suite, "system-out").text = _clean_text(
        "\n".join((*comparison.summary.disturbed, comparison.summary.sentence))
    )
    body: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return body


def _list_properties(comparison: StoreComparison) -> Iterator[tuple[str, str]]:
    yield "a", " ".join((comparison.a.store, comparison.a.selected)).strip()
    yield "b", " ".join((comparison.b.store, comparison.b.selected)).strip()
    if comparison.summary.disturbed:
        yield "disturbed", " ".join(comparison.summary.disturbed)
    yield "threshold", f"{comparison.rule.threshold:.4g}"
    for each in comparison.differences:
        yield f"{each.group}.{each.name}", f"A: {', '.join(each.a_values)}; B: {', '.join(each.b_values)}"


def _build_cases(comparison: StoreComparison, fail_on: Collection[str]) -> Iterator[Element]:
    for broken in comparison.broken:
        outcome = "failure" if "slower" in fail_on else "skipped"
        yield _build_case(broken.name, outcome, "measured in A, failed in B", broken.reason)
    for trial in comparison.trials:
        yield _build_compared_case(trial, comparison.rule.threshold, fail_on)
    for missing in comparison.only_a:
        outcome = "failure" if "missing" in fail_on else "skipped"
        yield _build_case(missing.name, outcome, "measured in A, not in B", missing.reason)


def _build_compared_case(trial: ComparedTrial, threshold: float, fail_on: Collection[str]) -> Element:
    if trial.regression and "slower" in fail_on:
        doubt = "; in doubt, because other load disturbed runs of B" if trial.in_doubt else ""
        message = f"slower by {_format_change(trial)}, more than {100 * threshold:.3g} %{doubt}"
        return _build_case(trial.name, "failure", message, _describe_evidence(trial))
    if trial.undecided:
        outcome = "failure" if "undecided" in fail_on else "skipped"
        return _build_case(trial.name, outcome, trial.reason, describe_disturbances(trial))
    case = _build_case(trial.name)
    SubElement(case, "system-out").text = _clean_text(f"{trial.verdict}: {_describe_evidence(trial)}")
    return case


def _describe_evidence(trial: ComparedTrial) -> str:
    lines = [trial.reason, f"trial {trial.a_trial_id} of A against {trial.b_trial_id} of B"]
    if trial.adjusted_p_value is not None and trial.effect_size is not None:
        lines.append(
            f"p = {trial.adjusted_p_value:.2g} corrected for the number of trials, Cliff's delta "
            f"{trial.effect_size:+.2f}, {trial.a_num_processes} and {trial.b_num_processes} processes"
        )
    if trial.a_num_disturbed or trial.b_num_disturbed:
        lines.append(describe_disturbances(trial))
    return "\n".join(lines)


def _format_change(trial: ComparedTrial) -> str:
    return "?" if trial.ratio is None else f"{100 * (trial.ratio - 1):.1f} %"


def _build_case(name: str, outcome: str = "", message: str = "", text: str = "") -> Element:
    case = Element("testcase", {"classname": "corewise.compare", "name": _clean_text(name), "time": "0"})
    if outcome:
        element = SubElement(case, outcome, message=_clean_text(message))
        element.text = _clean_text(text) or None
    return case


def _clean_text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
