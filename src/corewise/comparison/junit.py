"""A comparison as JUnit XML, which CI systems show beside other tests: one test case a trial."""

import re
from collections.abc import Collection, Iterator
from xml.etree.ElementTree import Element, SubElement, tostring

from corewise.comparison.model import ComparedTrial, Comparison
from corewise.comparison.words import disturbed_words

_SUITE = "corewise compare"
# What XML 1.0 cannot hold, not even escaped; a lone half of a character cannot be encoded.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(comparison: Comparison, fail_on: Collection[str]) -> bytes:
    """The XML as bytes. A case fails on what `fail_on` names; else one that gave no verdict is skipped."""
    cases = list(_cases(comparison, fail_on))
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
    SubElement(suite, "system-out").text = _text(
        "\n".join((*comparison.summary.disturbed, comparison.summary.sentence))
    )
    body: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return body


def _properties(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "a", " ".join((comparison.a.store, comparison.a.selected)).strip()
    yield "b", " ".join((comparison.b.store, comparison.b.selected)).strip()
    if comparison.summary.disturbed:
        yield "disturbed", " ".join(comparison.summary.disturbed)
    yield "threshold", f"{comparison.rule.threshold:.4g}"
    for each in comparison.differences:
        yield f"{each.group}.{each.name}", f"A: {', '.join(each.a_values)}; B: {', '.join(each.b_values)}"


def _cases(comparison: Comparison, fail_on: Collection[str]) -> Iterator[Element]:
    for broken in comparison.broken:
        kind = "failure" if "slower" in fail_on else "skipped"
        yield _case(broken.name, kind, "measured in A, failed in B", broken.reason)
    for trial in comparison.trials:
        yield _compared(trial, comparison.rule.threshold, fail_on)
    for missing in comparison.only_a:
        kind = "failure" if "missing" in fail_on else "skipped"
        yield _case(missing.name, kind, "measured in A, not in B", missing.reason)


def _compared(trial: ComparedTrial, threshold: float, fail_on: Collection[str]) -> Element:
    if trial.regression and "slower" in fail_on:
        doubt = "; in doubt: others disturbed runs of B" if trial.in_doubt else ""
        message = f"slower by {_change(trial)}, more than {100 * threshold:.3g} %{doubt}"
        return _case(trial.name, "failure", message, _evidence(trial))
    if trial.undecided:
        kind = "failure" if "undecided" in fail_on else "skipped"
        return _case(trial.name, kind, trial.reason, disturbed_words(trial))
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
    if trial.a_num_disturbed or trial.b_num_disturbed:
        lines.append(disturbed_words(trial))
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
