"""Apply `--set NAME=V1,V2` options to a study file before it is checked."""

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from corewise.errors import UserError, suggest_nearest
from corewise.measured.trial import Protocol
from corewise.study.axes import AXES, check_axis_name
from corewise.study.syntax.yaml_lines import Document, Key, Mistake, Origin, parse_yaml

TOP_LEVEL = ("workload", "mode", "runtime", "python", "prefix", "protocol")
PROTOCOL_KEYS = ("preset", *(field.name for field in fields(Protocol)))
_UNSPLIT_KEYS = ("python", "prefix")


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with each override in place of the file's value, and with its origin."""
    draft = _DocumentDraft(document)
    for text in overrides:
        draft.apply(text)
    return Document(draft.value, draft.origins, tuple(draft.mistakes))


class _DocumentDraft:
    """A copy of a document that overrides may change."""

    def __init__(self, document: Document) -> None:
        self.value: dict[str, Any] = copy.deepcopy(document.value)
        self.origins = dict(document.origins)
        self.mistakes = list(document.mistakes)

    def apply(self, text: str) -> None:
        origin = Origin(f"--set {text}")
        name, equals, given = (part.strip() for part in text.partition("="))
        try:
            if not equals:
                raise ValueError("write NAME=VALUE, for example --set threads=1,2,4")
            self.apply_value(name, given, origin)
        except ValueError as error:
            self.mistakes.append(Mistake(origin, str(error)))

    def apply_value(self, name: str, given: str, origin: Origin) -> None:
        section, _, field = name.partition(".")
        if name in _UNSPLIT_KEYS:
            self.put((name,), given, origin)
        elif name in TOP_LEVEL:
            values = _read_values(given)
            self.put((name,), values[0] if len(values) == 1 else values, origin)
        elif section == "protocol":
            self.put_protocol(field, _read_values(given), origin)
        else:
            _check_name(name)
            self.put_axis(name, _read_values(given), origin)

    def put(self, key: Key, value: Any, origin: Origin) -> None:
        holder = self.value
        for part in key[:-1]:
            holder = holder[str(part)]
        holder[str(key[-1])] = value
        self.drop_origins(key)
        self.origins[key] = origin

    def drop_origins(self, key: Key) -> None:
        for old_key in [old_key for old_key in self.origins if old_key[: len(key)] == key]:
            del self.origins[old_key]

    def put_protocol(self, field: str, values: list[Any], origin: Origin) -> None:
        if field not in PROTOCOL_KEYS:
            raise ValueError(f"unknown protocol field {field!r}; {suggest_nearest(field, PROTOCOL_KEYS)}")
        if len(values) != 1:
            raise ValueError(f"protocol.{field} takes one value, not {len(values)}")
        protocol = self.value.get("protocol")
        if isinstance(protocol, str):
            self.value["protocol"] = {"preset": protocol}
        if self.has_mapping("protocol"):
            self.put(("protocol", field), values[0], origin)

    def put_axis(self, name: str, values: list[Any], origin: Origin) -> None:
        # A section of another type is reported as a mistake of the file.
        if not (self.has_mapping("axes") and self.has_mapping("fixed")):
            return
        section = "fixed" if len(values) == 1 and name not in self.value["axes"] else "axes"
        for other in ("axes", "fixed"):
            if other != section:
                self.value[other].pop(name, None)
                self.drop_origins((other, name))
        self.put((section, name), values[0] if section == "fixed" else values, origin)

    def has_mapping(self, section: str) -> bool:
        """Return whether the section is a mapping; create an absent or empty one."""
        if self.value.get(section) is None:
            self.value[section] = {}
        return isinstance(self.value[section], dict)


def _check_name(name: str) -> None:
    if name.partition(".")[0] == "args":
        check_axis_name(name)
    elif name not in AXES:
        known = [*AXES, *TOP_LEVEL, "args.NAME", "protocol.FIELD"]
        raise ValueError(f"cannot set {name!r}: no such axis; {suggest_nearest(name, known)}")


def _read_values(given: str) -> list[Any]:
    """Return the comma-separated values, each read as YAML; an expression is not split."""
    if given.startswith("="):
        return [given]
    try:
        document = parse_yaml(f"[{given}]", "--set")
    except UserError:
        raise ValueError(f"cannot read {given!r} as values; write V1,V2 and quote values that contain , or :") from None
    if document.mistakes:
        raise ValueError(document.mistakes[0].message)
    if not isinstance(document.value, list):
        raise ValueError(f"cannot read {given!r} as values; write V1,V2")
    return document.value
