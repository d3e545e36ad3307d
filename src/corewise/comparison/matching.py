"""Trials of one side and their partners on the other, and what to say when there are none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from corewise.comparison.selection import By, as_text
from corewise.comparison.sides import DEFAULTS, Measured, Side
from corewise.report.words import clean, counted, listed
from corewise.spec.errors import UserError
from corewise.workloads.custom import is_custom

_LOOKED_AT = 2000  # trials of a side, when looking for what keeps the sides apart
_MOST_VALUES = 6
_INTERLEAVED = 0.5  # of the shorter trial's time must lie within the other's


@dataclass(frozen=True)
class Matches:
    """Who has whom for a partner, in the order of side A; a None stands for a trial that is not there."""

    pairs: Sequence[tuple[Measured, Measured]]  # ok on both sides
    broken: Sequence[tuple[Measured, Measured]]  # ok in A, failed in B
    fixed: Sequence[tuple[Measured, Measured]]  # failed in A, ok in B
    both_failed: Sequence[tuple[Measured, Measured]]
    only_a: Sequence[tuple[Measured, Measured | None]]  # measured in A, skipped or unknown in B
    only_b: Sequence[tuple[Measured | None, Measured]]


def match(a: Side, b: Side) -> Matches:
    """Every trial of the two sides in its place; what was skipped on both is left out."""
    found: dict[str, list[tuple[Measured, Measured]]] = {
        name: [] for name in ("ok ok", "ok failed", "failed ok", "failed failed")
    }
    only_a: list[tuple[Measured, Measured | None]] = []
    only_b: list[tuple[Measured | None, Measured]] = []
    for key, mine in a.trials.items():
        other = b.trials.get(key)
        if other is None or other.status == "skipped":
            if mine.status != "skipped":
                only_a.append((mine, other))
        elif mine.status == "skipped":
            only_b.append((mine, other))
        else:
            found[f"{mine.status} {other.status}"].append((mine, other))
    only_b += [(None, each) for key, each in b.trials.items() if key not in a.trials and _was_run(each)]
    both_ok, broken, fixed, both_failed = found.values()
    return Matches(both_ok, broken, fixed, both_failed, only_a, only_b)


def are_interleaved(a: Measured, b: Measured, same_host: bool) -> bool:
    """True when two trials of one store were run in turns: one study, one host, at the same time."""
    if not same_host or a.study != b.study:
        return False
    common_s = min(a.finished_s, b.finished_s) - max(a.started_s, b.started_s)
    shorter_s = min(a.finished_s - a.started_s, b.finished_s - b.started_s)
    return shorter_s > 0 and common_s >= _INTERLEAVED * shorter_s


def _was_run(trial: Measured) -> bool:
    return trial.status != "skipped"


def nothing_in_common(a: Side, b: Side, by: Sequence[By]) -> UserError:
    """What to tell the user when no trial of A has a partner in B: what sets them apart, what may help."""
    apart = _values_apart(a.trials.values(), b.trials.values(), [each.param for each in by])
    num_a, num_b = counted(len(a.trials), "trial"), counted(len(b.trials), "trial")
    told = f"no trial of A ({num_a}) was measured in B ({num_b})"
    if not apart:
        return UserError(
            f"{told}: every parameter has values in common, but no combination of them; "
            "run the same study for both sides"
        )
    words = "; ".join(
        f"{name} is {_some(mine)} in A and {_some(theirs)} in B" for name, mine, theirs in apart
    )
    single = [(name, mine[0], theirs[0]) for name, mine, theirs in apart if len(mine) == len(theirs) == 1]
    if len(single) == len(apart):
        options = " ".join(f"--by {name}={mine},{theirs}" for name, mine, theirs in single)
        return UserError(f"{told}: {words}. To compare these, add {clean(options)}")
    return UserError(
        f"{told}: {words}. Run the same study for both, or name what is meant with --by NAME=A,B"
    )


def _values_apart(
    a: Iterable[Measured], b: Iterable[Measured], ignored: Sequence[str | None]
) -> list[tuple[str, list[str], list[str]]]:
    """The parameters whose values on the two sides have none in common, with those values."""
    mine, theirs = _values_of(a), _values_of(b)
    apart = []
    for name in dict.fromkeys([*mine, *theirs]):
        usual = {as_text(DEFAULTS.get(name))}
        left, right = mine.get(name, usual), theirs.get(name, usual)
        if name not in ignored and not left & right:
            apart.append((name, sorted(left), sorted(right)))
    return apart


def _values_of(trials: Iterable[Measured]) -> Mapping[str, set[str]]:
    values: dict[str, set[str]] = {}
    for trial in islice(trials, _LOOKED_AT):
        for name, value in trial.params.items():
            text = Path(value).name if name == "workload" and is_custom(str(value)) else as_text(value)
            values.setdefault(name, set()).add(text)
    return values


def _some(values: Sequence[str]) -> str:
    return listed([clean(value) for value in values], most=_MOST_VALUES)
