"""Sentences that captions share."""

from collections.abc import Sequence

from corewise.report.groups import Group
from corewise.report.standing import looks_of
from corewise.report.words import counted


def interval_words(group: Group, drawn: Sequence[int], set_apart: bool = False) -> str:
    """What the whiskers are, and over how many runs."""
    nums = [int(group.rates.num[i]) for i in drawn]
    least, most = min(nums, default=0), max(nums, default=0)
    if most < 2:
        return "One run each: no interval can be drawn."
    runs = counted(most, "run") if least == most else f"{least} to {most} runs"
    apart = "; lines are set slightly apart to keep them legible" if set_apart else ""
    without = " Points without whiskers had a single run." if least < 2 else ""
    looked = ", corrected for having looked" if any(looks_of(group.records[i]) for i in drawn) else ""
    return (
        f"Whiskers: {100 * group.confidence:g} % intervals over {runs} in fresh processes, Student's t on "
        f"logarithms{looked}{apart}.{without}"
    )


def caption_joined(*sentences: str) -> str:
    """The sentences that there are, one after the other."""
    return " ".join(sentence for sentence in sentences if sentence)
