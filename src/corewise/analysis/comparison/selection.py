"""Select the records of a side: `--where NAME=VALUE` for both sides, `--by NAME=VALUE_A,VALUE_B` for each."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from corewise.errors import UserError, suggest_nearest
from corewise.study.record import Record
from corewise.text_format import clean_text, format_list

GROUPS = ("versions", "machine", "env", "protocol")
PLAIN = ("study", "corewise_version")
_SHORT = {"host": "machine.hostname"}
_MAX_VALUES_SHOWN = 12
ABSENT = "(absent)"


@dataclass(frozen=True)
class Condition:
    """A field of a record and its required value, as the user wrote them."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}"

    def is_met_by(self, text: str) -> bool:
        """Return True if this text matches the value; a version also matches by its first numbers."""
        if text == ABSENT:
            return self.value in ("", "null", "none")
        return text == self.value or (self.name.startswith("versions.") and _is_release(self.value, text))


@dataclass(frozen=True)
class SideField:
    """A field in which the sides differ by design, with both values."""

    name: str
    a: str
    b: str

    @property
    def param(self) -> str | None:
        """The parameter that matching must ignore, if the field is a parameter."""
        is_param = self.name not in PLAIN and self.name.partition(".")[0] not in GROUPS
        return self.name.removeprefix("params.") if is_param else None


def parse_by(texts: Sequence[str]) -> tuple[SideField, ...]:
    """Parse the values of `--by`; raises UserError if one is not valid."""
    return tuple(_parse_one(text) for text in texts)


def _parse_one(text: str) -> SideField:
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
    return SideField(_SHORT.get(parts[0], parts[0]), parts[1], parts[2])


def parse_where(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Parse the values of `--where`; raises UserError if one is not valid."""
    conditions = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip()):
            raise UserError(f"--where {text!r} is not NAME=VALUE; write for example --where workload=resnet50")
        conditions.append(Condition(_SHORT.get(name.strip(), name.strip()), value.strip()))
    return tuple(conditions)


def get_field(record: Record, name: str) -> Any:
    """Return the value of a field such as `threads`, `args.width`, `versions.torch` or `study`."""
    if name in PLAIN:
        return getattr(record, name)
    group, dot, key = name.partition(".")
    if dot and group in GROUPS:
        return getattr(record, group).get(key)
    return record.params.get(name.removeprefix("params."))


def format_value(value: Any) -> str:
    """Format a value as on a command line."""
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _is_release(wanted: str, version: str) -> bool:
    """Return True if the version is the wanted one or a patch or build of it: 2.11 matches 2.11.0+cpu."""
    return re.match(re.escape(wanted) + r"(?![0-9])", version) is not None


def is_accepted(record: Record, conditions: Sequence[Condition]) -> bool:
    """Return True if the record meets every condition."""
    return all(each.is_met_by(format_value(get_field(record, each.name))) for each in conditions)


class FieldChoices(NamedTuple):
    """The fields of a record for error messages: texts of the requested fields, names of all fields."""

    texts: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class FieldChoiceReader:
    """Extracts the field choices of a record while a store is read, perhaps in another process."""

    requested: tuple[str, ...]

    def __call__(self, record: Record, entry: object = None) -> FieldChoices:
        texts = tuple(format_value(get_field(record, name)) for name in self.requested)
        grouped = (f"{group}.{key}" for group in GROUPS for key in getattr(record, group))
        return FieldChoices(texts, _share_names((*record.params, *PLAIN, *grouped)))


@lru_cache(maxsize=1024)
def _share_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return one object for equal names, so that records from other processes share it."""
    return names


def explain_no_records(store: str, offers: Sequence[FieldChoices], conditions: Sequence[Condition]) -> UserError | None:
    """Return the error for conditions that no record meets, or None if there is no such condition."""
    remaining = offers
    for i, condition in enumerate(conditions):
        seen = Counter(each.texts[i] for each in remaining)
        if set(seen) <= {ABSENT}:
            names = {name for each in {each.names for each in remaining} for name in each}
            hint = suggest_nearest(condition.name, names)
            return UserError(f"no record of {store} has a field {clean_text(condition.name)!r}: {hint}")
        if not any(condition.is_met_by(text) for text in seen):
            values = [clean_text(text) for text, _ in seen.most_common()]
            return UserError(
                f"no record of {store} has {clean_text(str(condition))}: {clean_text(condition.name)} is "
                f"{format_list(values, max_items=_MAX_VALUES_SHOWN, conjunction='or')}"
            )
        remaining = [each for each in remaining if condition.is_met_by(each.texts[i])]
    return None
