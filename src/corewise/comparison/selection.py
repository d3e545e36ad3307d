"""Which records of a store make a side: `--where NAME=VALUE` for both, `--by NAME=VALUE_A,VALUE_B` apart."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from corewise.report.words import clean, listed
from corewise.spec.errors import UserError, nearest
from corewise.spec.record import Record

GROUPS = ("versions", "machine", "env", "protocol")
PLAIN = ("study", "corewise_version")
_SHORT = {"host": "machine.hostname"}
_MOST_VALUES = 12  # named in a message
ABSENT = "(absent)"


@dataclass(frozen=True)
class Condition:
    """A field of a record and the value it must have, both as written."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def meets(self, text: str) -> bool:
        """True when a field with this text has the value; a version also by its first numbers."""
        if text == ABSENT:
            return self.value in ("", "null", "none")
        return text == self.value or (self.name.startswith("versions.") and _is_release(self.value, text))


@dataclass(frozen=True)
class By:
    """A field in which the two sides differ by design, with the value of each."""

    name: str
    a: str
    b: str

    @property
    def param(self) -> str | None:
        """The parameter that matching must not look at, where the field is one."""
        is_param = self.name not in PLAIN and self.name.partition(".")[0] not in GROUPS
        return self.name.removeprefix("params.") if is_param else None


def parse_by(texts: Sequence[str]) -> tuple[By, ...]:
    """What `--by` asks for; raises UserError for what cannot be meant."""
    return tuple(_parse_one(text) for text in texts)


def _parse_one(text: str) -> By:
    name, equals, values = text.partition("=")
    a, comma, b = values.partition(",")
    parts = [part.strip() for part in (name, a, b)]
    if not (equals and comma and all(parts)) or "," in b:
        raise UserError(
            f"--by {text!r} is not NAME=VALUE_A,VALUE_B; write for example --by math=vendor,vanilla "
            "or --by versions.torch=2.11,2.13"
        )
    if parts[1] == parts[2]:
        raise UserError(f"--by {text!r} gives both sides the same value: name two that differ")
    return By(_SHORT.get(parts[0], parts[0]), parts[1], parts[2])


def parse_where(texts: Sequence[str]) -> tuple[Condition, ...]:
    """What `--where` asks for; raises UserError for what cannot be meant."""
    conditions = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()):
            raise UserError(
                f"--where {text!r} is not NAME=VALUE; write for example --where workload=resnet50"
            )
        conditions.append(Condition(_SHORT.get(name.strip(), name.strip()), value.strip()))
    return tuple(conditions)


def field_of(record: Record, name: str) -> Any:
    """The value of a field such as `threads`, `args.width`, `versions.torch`, `machine.hostname`, `study`."""
    if name in PLAIN:
        return getattr(record, name)
    group, dot, key = name.partition(".")
    if dot and group in GROUPS:
        return getattr(record, group).get(key)
    return record.params.get(name.removeprefix("params."))


def as_text(value: Any) -> str:
    """A value as people write it on a command line."""
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_release(wanted: str, version: str) -> bool:
    """True when the version is the wanted one or a patch or build of it: 2.11 for 2.11.0+cpu."""
    return re.match(re.escape(wanted) + r"(?![0-9])", version) is not None


def accepted(record: Record, conditions: Sequence[Condition]) -> bool:
    """True when the record meets every condition."""
    return all(each.meets(as_text(field_of(record, each.name))) for each in conditions)


class Choices(NamedTuple):
    """What a record offers to choose by: the texts of the fields asked for, and the names of all."""

    texts: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Offer:
    """Gives the choices of a record while a store is read, perhaps by another process."""

    asked: tuple[str, ...]

    def __call__(self, record: Record, entry: object = None) -> Choices:
        texts = tuple(as_text(field_of(record, name)) for name in self.asked)
        grouped = (f"{group}.{key}" for group in GROUPS for key in getattr(record, group))
        return Choices(texts, _shared((*record.params, *PLAIN, *grouped)))


@lru_cache(maxsize=1024)
def _shared(names: tuple[str, ...]) -> tuple[str, ...]:
    """One object for equal names, so that what comes from another process holds it once."""
    return names


def why_none(store: str, offers: Sequence[Choices], conditions: Sequence[Condition]) -> UserError | None:
    """What to tell the user when no record meets all conditions, or None when that is not why."""
    left = offers
    for i, condition in enumerate(conditions):
        seen = Counter(each.texts[i] for each in left)
        if set(seen) <= {ABSENT}:
            names = {name for each in {each.names for each in left} for name in each}
            hint = nearest(condition.name, names)
            return UserError(f"no record of {store} has a field {clean(condition.name)!r}: {hint}")
        if not any(condition.meets(text) for text in seen):
            values = [clean(text) for text, _ in seen.most_common()]
            return UserError(
                f"no record of {store} has {clean(str(condition))}: {clean(condition.name)} is "
                f"{listed(values, most=_MOST_VALUES, last='or')}"
            )
        left = [each for each in left if condition.meets(each.texts[i])]
    return None
