"""In what the two sides differ besides the trials: machine, versions, protocol, variables, Corewise."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from corewise.comparison.model import Difference
from corewise.comparison.selection import ABSENT, GROUPS, as_text
from corewise.comparison.sides import Environment, Measured, Side

_ORDER = ("machine", "versions", "corewise", "protocol", "env")
_COREWISE = ("corewise", "version")
Field = tuple[str, str]


def differences(a: Side, b: Side, pairs: Sequence[tuple[Measured, Measured]]) -> list[Difference]:
    """Every field in which partners differ, or in which the records of one side disagree.

    Variables such as OMP_NUM_THREADS follow the trial's own parameters: in them only partners are compared.
    """
    together = Counter((mine.environment, theirs.environment) for mine, theirs in pairs)
    num_differing: Counter[Field] = Counter()
    for (mine, theirs), num in together.items():
        left, right = a.environments[mine], b.environments[theirs]
        for field in _fields([left, right]):
            num_differing[field] += num * (_text(left, field) != _text(right, field))
    uses_a = Counter(trial.environment for trial in a.trials.values())
    uses_b = Counter(trial.environment for trial in b.trials.values())
    found = []
    for field in _fields([*a.environments.values(), *b.environments.values()]):
        a_values, b_values = _values(a, uses_a, field), _values(b, uses_b, field)
        disagrees = max(len(a_values), len(b_values)) > 1 and field[0] != "env"
        if num_differing[field] or disagrees:
            found.append(
                Difference(
                    group=field[0],
                    name=field[1],
                    a_values=a_values,
                    b_values=b_values,
                    num_pairs=num_differing[field],
                )
            )
    return sorted(found, key=lambda each: (each.num_pairs == 0, _ORDER.index(each.group)))


def _fields(environments: Iterable[Environment]) -> list[Field]:
    return list(dict.fromkeys(field for each in environments for field in _fields_of(each)))


def _fields_of(environment: Environment) -> Iterator[Field]:
    for group in GROUPS:
        for name in getattr(environment, group):
            yield group, name
    yield _COREWISE


def _text(environment: Environment, field: Field) -> str:
    group, name = field
    value: Any = environment.corewise_version if field == _COREWISE else getattr(environment, group).get(name)
    return as_text(value)


def _values(side: Side, uses: "Counter[bytes]", field: Field) -> list[str]:
    """The values of a field that the side's trials have, most frequent first."""
    counts: Counter[str] = Counter()
    for environment, num in uses.items():
        counts[_text(side.environments[environment], field)] += num
    return [text for text, _ in counts.most_common()] or [ABSENT]
