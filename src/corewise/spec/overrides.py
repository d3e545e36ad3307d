"""`--set NAME=V1,V2` from the command line, laid over a study file before it is checked."""

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from corewise.spec.axes import AXES, check_axis_name
from corewise.spec.errors import UserError, nearest
from corewise.spec.trial import Protocol
from corewise.spec.yaml_lines import Document, Key, Mistake, Origin, parse_yaml

TOP_LEVEL = ("workload", "mode", "runtime", "python", "prefix", "protocol")
PROTOCOL_WORDS = ("preset", *(field.name for field in fields(Protocol)))
_TAKEN_WHOLE = ("python", "prefix")


def apply_overrides(document: Document, overrides: Sequence[str]) -> Document:
    """The document with each override in place of what the file says, and its origin with it."""
    draft = _Draft(document)
    for text in overrides:
        draft.apply(text)
    return Document(draft.value, draft.origins, tuple(draft.mistakes))


class _Draft:
    def __init__(self, document: Document) -> None:
        self.value: dict[str, Any] = copy.deepcopy(document.value)
        self.origins = dict(document.origins)
        self.mistakes = list(document.mistakes)

    def apply(self, text: str) -> None:
        origin = Origin(f"--set {text}")
        name, equals, given = (part.strip() for part in text.partition("="))
        try:
            if not equals:
                raise ValueError("write it as NAME=VALUE, as in --set threads=1,2,4")
            self.place(name, given, origin)
        except ValueError as error:
            self.mistakes.append(Mistake(origin, str(error)))

    def place(self, name: str, given: str, origin: Origin) -> None:
        section, _, field = name.partition(".")
        if name in _TAKEN_WHOLE:
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
        self.forget(key)
        self.origins[key] = origin

    def forget(self, key: Key) -> None:
        for known in [known for known in self.origins if known[: len(key)] == key]:
            del self.origins[known]

    def put_protocol(self, field: str, values: list[Any], origin: Origin) -> None:
        if field not in PROTOCOL_WORDS:
            raise ValueError(f"unknown protocol field {field!r}; {nearest(field, PROTOCOL_WORDS)}")
        if len(values) != 1:
            raise ValueError(f"protocol.{field} takes one value, not {len(values)}")
        protocol = self.value.get("protocol")
        if isinstance(protocol, str):
            self.value["protocol"] = {"preset": protocol}
        if self.has_mapping("protocol"):
            self.put(("protocol", field), values[0], origin)

    def put_axis(self, name: str, values: list[Any], origin: Origin) -> None:
        if not (self.has_mapping("axes") and self.has_mapping("fixed")):
            return  # reported as a mistake of the file
        section = "fixed" if len(values) == 1 and name not in self.value["axes"] else "axes"
        for old in ("axes", "fixed"):
            if old != section:
                self.value[old].pop(name, None)
                self.forget((old, name))
        self.put((section, name), values[0] if section == "fixed" else values, origin)

    def has_mapping(self, section: str) -> bool:
        """Whether the section is a mapping; an absent or empty one is made."""
        if self.value.get(section) is None:
            self.value[section] = {}
        return isinstance(self.value[section], dict)


def _check_name(name: str) -> None:
    if name.partition(".")[0] == "args":
        check_axis_name(name)
    elif name not in AXES:
        known = [*AXES, *TOP_LEVEL, "args.NAME", "protocol.FIELD"]
        raise ValueError(f"cannot set {name!r}: no such axis; {nearest(name, known)}")


def _read_values(given: str) -> list[Any]:
    """The values between commas, each read as YAML; an expression is taken whole."""
    if given.startswith("="):
        return [given]
    try:
        document = parse_yaml(f"[{given}]", "--set")
    except UserError:
        raise ValueError(
            f"cannot read {given!r} as values; write V1,V2 and quote what has , or : in it"
        ) from None
    if document.mistakes:
        raise ValueError(document.mistakes[0].what)
    if not isinstance(document.value, list):
        raise ValueError(f"cannot read {given!r} as values; write V1,V2")
    return document.value
