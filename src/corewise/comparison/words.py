"""Sentences about a comparison that the terminal and the page share."""

from collections.abc import Sequence

from corewise.comparison.model import ComparedTrial, Comparison, Difference, SideFacts, Summary
from corewise.comparison.verdicts import LEAST_QUIET, PER_SAMPLE
from corewise.report.words import clean, counted, listed

_MOST_VALUES = 4


def side_name(side: SideFacts) -> str:
    """A side as people call it: its folder, and which part of it."""
    return clean(f"{side.store} ({side.selected})" if side.selected else side.store)


def values_words(values: Sequence[str]) -> str:
    """The values of one side in a cell."""
    return listed([clean(value) for value in values], most=_MOST_VALUES)


def counts_words(summary: Summary) -> str:
    """The verdicts counted."""
    return (
        f"Of {counted(summary.num_trials, 'trial')}: {summary.num_slower:,} slower, "
        f"{summary.num_faster:,} faster, {summary.num_same:,} the same; "
        f"of {summary.num_undecided:,} the data cannot tell."
    )


def disturbed_words(trial: ComparedTrial) -> str:
    """How many runs of a trial others disturbed, or nothing."""
    sides = [
        f"{num:,} of {letter}"
        for letter, num in (("A", trial.a_num_disturbed), ("B", trial.b_num_disturbed))
        if num
    ]
    return f"runs that others disturbed: {listed(sides)}" if sides else ""


def difference_words(differences: Sequence[Difference]) -> str:
    """What differs, in one sentence."""
    between = [_field(each) for each in differences if each.num_pairs]
    if not between:
        return "Machine, versions, protocol and variables of the two sides are the same."
    verb = "differs" if len(between) == 1 else "differ"
    return f"{counted(len(between), 'thing')} {verb}: {listed(between, most=6)}."


def within_words(differences: Sequence[Difference]) -> list[str]:
    """What to say of a side whose own records disagree."""
    found = []
    for side, words in (
        ("A", [_field(each) for each in differences if each.within_a]),
        ("B", [_field(each) for each in differences if each.within_b]),
    ):
        if words:
            found.append(f"The records of {side} do not agree among themselves in {listed(words, most=6)}.")
    return found


def _field(difference: Difference) -> str:
    return clean(f"{difference.group} {difference.name}")


def rule_words(comparison: Comparison) -> list[tuple[str, str]]:
    """How the verdicts were reached: name and value."""
    rule = comparison.rule
    metric = (
        "seconds per sample (steps of the two sides hold different numbers of samples)"
        if rule.metric == PER_SAMPLE
        else "median step of each process"
    )
    disturbed = (
        f"left out where {LEAST_QUIET} others a side remain; else what they may account for is not told"
        if rule.ignore_disturbed
        else "counted like others, and named"
    )
    return [
        ("compared", metric),
        ("disturbed processes", disturbed),
        ("test", "Mann-Whitney on ranks; Welch's t where processes are few or trials were interleaved"),
        ("confidence", f"{100 * rule.confidence:g} %, corrected for having looked while measuring"),
        ("number of trials", f"corrected by {rule.correction}: the false discovery rate"),
        ("margin", f"{100 * rule.margin:g} %: smaller differences between occasions are the same"),
        ("threshold", f"{100 * rule.threshold:g} %: the smallest slowdown that is a regression"),
        ("times of A and B", "geometric means where Welch's t compares them, else medians"),
        ("effect size", "Cliff's delta"),
        ("mean ratio", "geometric mean; interval by bootstrap over trials and processes"),
    ]
