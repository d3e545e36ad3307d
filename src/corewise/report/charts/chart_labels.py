"""Sentences that captions share."""

from collections.abc import Sequence

from corewise.analysis.groups import Group
from corewise.analysis.ratios import get_looks
from corewise.text_format import format_count


def describe_intervals(group: Group, drawn: Sequence[int], is_shifted: bool = False) -> str:
    """Describe the whiskers and the number of runs."""
    nums = [int(group.rates.num[i]) for i in drawn]
    least, most = min(nums, default=0), max(nums, default=0)
    if most < 2:
        return "One run each, so there are no intervals."
    runs = format_count(most, "run") if least == most else f"{least} to {most} runs"
    shift = "; lines are shifted slightly to keep them legible" if is_shifted else ""
    without = " Points without whiskers had a single run." if least < 2 else ""
    correction = ", corrected for optional stopping" if any(get_looks(group.records[i].protocol) for i in drawn) else ""
    return (
        f"Whiskers: {100 * group.confidence:g} % intervals over {runs} in fresh processes, Student's t on "
        f"logarithms{correction}{shift}.{without}"
    )


def join_sentences(*sentences: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(sentence for sentence in sentences if sentence)
