"""Sentences about a comparison, for the terminal and the page."""

from collections.abc import Sequence

from corewise.analysis.comparison.comparison_model import (
    ComparedTrial,
    ComparisonSummary,
    Difference,
    SideFacts,
    StoreComparison,
)
from corewise.analysis.comparison.verdicts import MIN_QUIET_PROCESSES, PER_SAMPLE
from corewise.text_format import clean_text, format_count, format_list

_MAX_VALUES = 4


def name_side(side: SideFacts) -> str:
    """Name a side by its folder and the selected part of it."""
    return clean_text(f"{side.store} ({side.selected})" if side.selected else side.store)


def format_values(values: Sequence[str]) -> str:
    """Format the values of one side for a cell."""
    return format_list([clean_text(value) for value in values], max_items=_MAX_VALUES)


def describe_counts(summary: ComparisonSummary) -> str:
    """Count the verdicts."""
    return (
        f"Of {format_count(summary.num_trials, 'trial')}: {summary.num_slower:,} slower, "
        f"{summary.num_faster:,} faster, {summary.num_same:,} the same; "
        f"in {summary.num_undecided:,} the data cannot tell."
    )


def describe_disturbances(trial: ComparedTrial) -> str:
    """Say how many runs of a trial were disturbed, or return ""."""
    sides = [
        f"{num:,} of {letter}" for letter, num in (("A", trial.a_num_disturbed), ("B", trial.b_num_disturbed)) if num
    ]
    return f"runs disturbed by other load: {format_list(sides)}" if sides else ""


def describe_differences(differences: Sequence[Difference]) -> str:
    """Describe what differs, in one sentence."""
    between = [_name_field(each) for each in differences if each.num_pairs]
    if not between:
        return "Machine, versions, protocol and variables are the same on both sides."
    verb = "differs" if len(between) == 1 else "differ"
    return f"{format_count(len(between), 'thing')} {verb}: {format_list(between, max_items=6)}."


def describe_disagreements(differences: Sequence[Difference]) -> list[str]:
    """Describe where the records of one side differ among themselves."""
    sentences = []
    for side, fields in (
        ("A", [_name_field(each) for each in differences if each.within_a]),
        ("B", [_name_field(each) for each in differences if each.within_b]),
    ):
        if fields:
            sentences.append(f"The records of {side} differ among themselves in {format_list(fields, max_items=6)}.")
    return sentences


def _name_field(difference: Difference) -> str:
    return clean_text(f"{difference.group} {difference.name}")


def describe_rule(comparison: StoreComparison) -> list[tuple[str, str]]:
    """Describe how the verdicts were reached, as names and values."""
    rule = comparison.rule
    metric = (
        "seconds per sample (steps of the two sides hold different numbers of samples)"
        if rule.metric == PER_SAMPLE
        else "median step of each process"
    )
    disturbed = (
        f"left out where {MIN_QUIET_PROCESSES} undisturbed ones remain on each side; else differences that "
        "they may explain are undecided"
        if rule.ignore_disturbed
        else "included, and listed"
    )
    return [
        ("compared", metric),
        ("disturbed processes", disturbed),
        ("test", "Mann-Whitney on ranks; Welch's t where processes are few or trials were interleaved"),
        ("confidence", f"{100 * rule.confidence:g} %, corrected for optional stopping"),
        ("number of trials", f"false discovery rate, corrected by {rule.correction}"),
        ("margin", f"{100 * rule.margin:g} %: smaller differences between occasions count as none"),
        ("threshold", f"{100 * rule.threshold:g} %: the smallest slowdown that counts as a regression"),
        ("times of A and B", "geometric means where Welch's t compares them, else medians"),
        ("effect size", "Cliff's delta"),
        ("mean ratio", "geometric mean; interval by bootstrap over trials and processes"),
    ]
