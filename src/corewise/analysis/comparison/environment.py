"""Differences between the environments of two sides: machine, versions, protocol, variables, Corewise."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from corewise.analysis.comparison.comparison_model import Difference
from corewise.analysis.comparison.selection import ABSENT, GROUPS, format_value
from corewise.analysis.comparison.sides import ComparisonSide, Environment, MeasuredTrial

_ORDER = ("machine", "versions", "corewise", "protocol", "env")
_COREWISE = ("corewise", "version")
EnvironmentField = tuple[str, str]


def find_differences(
    a: ComparisonSide, b: ComparisonSide, pairs: Sequence[tuple[MeasuredTrial, MeasuredTrial]]
) -> list[Difference]:
    """Find the fields in which partners differ, or the records of one side.

    Variables such as OMP_NUM_THREADS depend on the parameters of a trial, so they are compared only between
    partners.
    """
    environment_pairs = Counter((mine.environment, theirs.environment) for mine, theirs in pairs)
    num_differing: Counter[EnvironmentField] = Counter()
    for (mine, theirs), num in environment_pairs.items():
        left, right = a.environments[mine], b.environments[theirs]
        for field in _list_fields([left, right]):
            num_differing[field] += num * (_format_field(left, field) != _format_field(right, field))
    uses_a = Counter(trial.environment for trial in a.trials.values())
    uses_b = Counter(trial.environment for trial in b.trials.values())
    differences = []
    for field in _list_fields([*a.environments.values(), *b.environments.values()]):
        a_values, b_values = _list_values(a, uses_a, field), _list_values(b, uses_b, field)
        disagrees = max(len(a_values), len(b_values)) > 1 and field[0] != "env"
        if num_differing[field] or disagrees:
            differences.append(
                Difference(
                    group=field[0], name=field[1], a_values=a_values, b_values=b_values, num_pairs=num_differing[field]
                )
            )
    return sorted(differences, key=lambda each: (each.num_pairs == 0, _ORDER.index(each.group)))


def _list_fields(environments: Iterable[Environment]) -> list[EnvironmentField]:
    return list(dict.fromkeys(field for each in environments for field in _iterate_fields(each)))


def _iterate_fields(environment: Environment) -> Iterator[EnvironmentField]:
    for group in GROUPS:
        for name in getattr(environment, group):
            yield group, name
    yield _COREWISE


def _format_field(environment: Environment, field: EnvironmentField) -> str:
    group, name = field
    value: Any = environment.corewise_version if field == _COREWISE else getattr(environment, group).get(name)
    return format_value(value)


def _list_values(side: ComparisonSide, uses: "Counter[bytes]", field: EnvironmentField) -> list[str]:
    """Return the values of a field on one side, most frequent first."""
    counts: Counter[str] = Counter()
    for environment, num in uses.items():
        counts[_format_field(side.environments[environment], field)] += num
    return [text for text, _ in counts.most_common()] or [ABSENT]
