"""Match the trials of two sides, and explain why no trial matches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

from corewise.analysis.comparison.selection import SideField, format_value
from corewise.analysis.comparison.sides import DEFAULTS, ComparisonSide, Conditions, MeasuredTrial, get_precedence
from corewise.errors import UserError
from corewise.measured.workloads.custom import is_custom
from corewise.text_format import clean_text, format_count, format_list

# Trials of each side that are scanned to explain why no trial matches.
_MAX_TRIALS_SCANNED = 2000
_MAX_VALUES_SHOWN = 6
# Fraction of the shorter trial that must overlap with the other for two trials to count as interleaved.
_MIN_OVERLAP = 0.5


@dataclass(frozen=True)
class Matches:
    """The matched trials of two sides, in the order of side A; None stands for a missing trial.

    Attributes:
        pairs: ok on both sides.
        broken: ok in A, failed in B.
        fixed: failed in A, ok in B.
        only_a: measured in A, skipped or missing in B.
    """

    pairs: Sequence[tuple[MeasuredTrial, MeasuredTrial]]
    broken: Sequence[tuple[MeasuredTrial, MeasuredTrial]]
    fixed: Sequence[tuple[MeasuredTrial, MeasuredTrial]]
    both_failed: Sequence[tuple[MeasuredTrial, MeasuredTrial]]
    only_a: Sequence[tuple[MeasuredTrial, MeasuredTrial | None]]
    only_b: Sequence[tuple[MeasuredTrial | None, MeasuredTrial]]


def match_trials(a: ComparisonSide, b: ComparisonSide) -> Matches:
    """Find the partner of every trial; trials skipped on both sides are left out."""
    for key in dict.fromkeys((*a.repeats, *b.repeats)):
        _match_repeats(key, a, b)
    by_status: dict[str, list[tuple[MeasuredTrial, MeasuredTrial]]] = {
        name: [] for name in ("ok ok", "ok failed", "failed ok", "failed failed")
    }
    only_a: list[tuple[MeasuredTrial, MeasuredTrial | None]] = []
    only_b: list[tuple[MeasuredTrial | None, MeasuredTrial]] = []
    for key, mine in a.trials.items():
        other = b.trials.get(key)
        if other is None or other.status == "skipped":
            if mine.status != "skipped":
                only_a.append((mine, other))
        elif mine.status == "skipped":
            only_b.append((mine, other))
        else:
            by_status[f"{mine.status} {other.status}"].append((mine, other))
    only_b += [(None, each) for key, each in b.trials.items() if key not in a.trials and _was_run(each)]
    both_ok, broken, fixed, both_failed = by_status.values()
    return Matches(both_ok, broken, fixed, both_failed, only_a, only_b)


def _match_repeats(key: bytes, a: ComparisonSide, b: ComparisonSide) -> None:
    """Match trials with the same parameters by machine, version and protocol, as in reports."""
    mine, theirs = a.list_latest(key), b.list_latest(key)
    pairs = _choose_pairs(mine, theirs)
    a.keep(key, [one for one, _ in pairs] or sorted(mine.values(), key=get_precedence)[-1:])
    b.keep(key, [two for _, two in pairs] or sorted(theirs.values(), key=get_precedence)[-1:])


def _choose_pairs(
    mine: Mapping[Conditions, MeasuredTrial], theirs: Mapping[Conditions, MeasuredTrial]
) -> list[tuple[MeasuredTrial, MeasuredTrial]]:
    """Choose the pair with most common conditions, then all that share the machine and as many conditions.

    Pairs that ran on both sides come before skipped ones; of equal pairs, the last measured one is chosen.
    """
    ranked = []
    for (x, one), (y, two) in product(mine.items(), theirs.items()):
        shared = tuple(own == other for own, other in zip(x, y, strict=True))
        rank = (_was_run(one) and _was_run(two), shared, get_precedence(one), get_precedence(two))
        ranked.append((rank, x, y))
    ranked.sort(key=lambda each: each[0], reverse=True)
    chosen: dict[Conditions, Conditions] = {}
    for rank, x, y in ranked:
        is_like_first = rank[1][0] and rank[:2] == ranked[0][0][:2]
        if not chosen or (is_like_first and x not in chosen and y not in chosen.values()):
            chosen[x] = y
    return [(mine[x], theirs[y]) for x, y in chosen.items()]


def have_interleaved_runs(a: MeasuredTrial, b: MeasuredTrial, same_host: bool) -> bool:
    """Return True if two trials of one store were interleaved: one study, one host, overlapping times."""
    if not same_host or a.study != b.study:
        return False
    common_s = min(a.finished_s, b.finished_s) - max(a.started_s, b.started_s)
    shorter_s = min(a.finished_s - a.started_s, b.finished_s - b.started_s)
    return shorter_s > 0 and common_s >= _MIN_OVERLAP * shorter_s


def _was_run(trial: MeasuredTrial) -> bool:
    return trial.status != "skipped"


def explain_no_match(a: ComparisonSide, b: ComparisonSide, by: Sequence[SideField]) -> UserError:
    """Build the error for sides without a common trial: the differing parameters and what to do."""
    disjoint = _find_disjoint_params(a.trials.values(), b.trials.values(), [each.param for each in by])
    num_a, num_b = format_count(len(a.trials), "trial"), format_count(len(b.trials), "trial")
    message = f"no trial of A ({num_a}) was measured in B ({num_b})"
    if not disjoint:
        return UserError(
            f"{message}. Each parameter has common values, but no combination of them is common. "
            "Run the same study for both sides"
        )
    differences = "; ".join(
        f"{name} is {_list_values(mine)} in A and {_list_values(theirs)} in B" for name, mine, theirs in disjoint
    )
    single = [(name, mine[0], theirs[0]) for name, mine, theirs in disjoint if len(mine) == len(theirs) == 1]
    if len(single) == len(disjoint):
        options = " ".join(f"--by {name}={mine},{theirs}" for name, mine, theirs in single)
        return UserError(f"{message}: {differences}. To compare these, add {clean_text(options)}")
    return UserError(
        f"{message}: {differences}. Run the same study for both sides, or name two values with --by NAME=A,B"
    )


def _find_disjoint_params(
    a: Iterable[MeasuredTrial], b: Iterable[MeasuredTrial], ignored: Sequence[str | None]
) -> list[tuple[str, list[str], list[str]]]:
    """Return the parameters without a common value, with the values of both sides."""
    mine, theirs = _collect_values(a), _collect_values(b)
    disjoint = []
    for name in dict.fromkeys([*mine, *theirs]):
        default = {format_value(DEFAULTS.get(name))}
        left, right = mine.get(name, default), theirs.get(name, default)
        if name not in ignored and not left & right:
            disjoint.append((name, sorted(left), sorted(right)))
    return disjoint


def _collect_values(trials: Iterable[MeasuredTrial]) -> Mapping[str, set[str]]:
    values: dict[str, set[str]] = {}
    for trial in islice(trials, _MAX_TRIALS_SCANNED):
        for name, value in trial.params.items():
            text = Path(value).name if name == "workload" and is_custom(str(value)) else format_value(value)
            values.setdefault(name, set()).add(text)
    return values


def _list_values(values: Sequence[str]) -> str:
    return format_list([clean_text(value) for value in values], max_items=_MAX_VALUES_SHOWN)
