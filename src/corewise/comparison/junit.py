"""A comparison as JUnit XML, which CI systems show beside other tests: one test case a trial."""

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement, tostring

from corewise.comparison.model import ComparedTrial, Comparison

_SUITE = "corewise compare"
# What XML 1.0 cannot hold, not even escaped; a lone half of a character cannot be encoded.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(comparison: Comparison) -> bytes:
    """The XML as bytes. A case fails when it is a regression, is skipped when the data cannot tell."""
    cases = list(_cases(comparison))
    kinds = [child.tag for case in cases for child in case]
    counts = {
        "name": _SUITE,
        "tests": str(len(cases)),
        "failures": str(kinds.count("failure")),
        "errors": "0",
        "skipped": str(kinds.count("skipped")),
    }
    root = Element("testsuites", counts)
    suite = SubElement(root, "testsuite", {**counts, "time": "0"})
    properties = SubElement(suite, "properties")
    for name, value in _properties(comparison):
        SubElement(properties, "property", name=_text(name), value=_text(value))
    suite.extend(cases)
    SubElement(suite, "system-out").text = _text(comparison.summary.sentence)
    body: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return body


def _properties(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "a", " ".join((comparison.a.store, comparison.a.selected)).strip()
    yield "b", " ".join((comparison.b.store, comparison.b.selected)).strip()
    yield "threshold", f"{comparison.rule.threshold:.4g}"
    for each in comparison.differences:
        yield f"{each.group}.{each.name}", f"A: {', '.join(each.a_values)}; B: {', '.join(each.b_values)}"


def _cases(comparison: Comparison) -> Iterator[Element]:
    for broken in comparison.broken:
        yield _case(broken.name, "failure", "measured in A, failed in B", broken.reason)
    for trial in comparison.trials:
        yield _compared(trial, comparison.rule.threshold)
    for missing in comparison.only_a:
        yield _case(missing.name, "skipped", "measured in A, not in B", missing.reason)


def _compared(trial: ComparedTrial, threshold: float) -> Element:
    if trial.regression:
        message = f"slower by {_change(trial)}, more than {100 * threshold:.3g} %"
        return _case(trial.name, "failure", message, _evidence(trial))
    if trial.undecided:
        return _case(trial.name, "skipped", trial.reason, "")
    case = _case(trial.name)
    SubElement(case, "system-out").text = _text(f"{trial.verdict}: {_evidence(trial)}")
    return case


def _evidence(trial: ComparedTrial) -> str:
    lines = [trial.reason, f"trial {trial.a_trial_id} of A against {trial.b_trial_id} of B"]
    if trial.adjusted_p_value is not None and trial.effect_size is not None:
        lines.append(
            f"p = {trial.adjusted_p_value:.2g} corrected for the number of trials, Cliff's delta "
            f"{trial.effect_size:+.2f}, {trial.a_num_processes} and {trial.b_num_processes} processes"
        )
    return "\n".join(lines)


def _change(trial: ComparedTrial) -> str:
    return "?" if trial.ratio is None else f"{100 * (trial.ratio - 1):.1f} %"


def _case(name: str, kind: str = "", message: str = "", text: str = "") -> Element:
    case = Element("testcase", {"classname": "corewise.compare", "name": _text(name), "time": "0"})
    if kind:
        outcome = SubElement(case, kind, message=_text(message))
        outcome.text = _text(text) or None
    return case


def _text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
