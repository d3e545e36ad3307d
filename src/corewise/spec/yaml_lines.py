"""YAML with line numbers: plain values, where each one stands, and every mistake met on the way."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from corewise.spec.errors import UserError

Key = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20
MAX_VALUES = 20_000  # aliases can make a small file enormous

_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a line of a file, or a word of the command line."""

    label: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.label}:{self.line}" if self.line else self.label


@dataclass(frozen=True)
class Mistake:
    """One thing the user has to mend."""

    where: Origin
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Document:
    """A file's plain value, and the origin of each part of it."""

    value: Any
    origins: Mapping[Key, Origin]
    mistakes: tuple[Mistake, ...] = ()

    def where(self, key: Key) -> Origin:
        """The origin of the value at `key`, or of what holds it."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins[key]


def mistakes_error(mistakes: Sequence[Mistake]) -> UserError:
    """One error that tells all mistakes, in the order of their lines."""
    ordered = sorted(dict.fromkeys(mistakes), key=lambda m: (m.where.line == 0, m.where.line))
    if len(ordered) == 1:
        return UserError(str(ordered[0]))
    return UserError(f"{len(ordered)} mistakes:\n" + "\n".join(f"  {mistake}" for mistake in ordered))


STUDY_NEEDS = "a study needs at least `workload: NAME`"


def read_yaml(path: Path, needs: str = STUDY_NEEDS) -> Document:
    """The document in a file; a file that cannot be parsed at all is a UserError."""
    return parse_yaml(_decode(_read_bytes(path), str(path)), str(path), needs)


def parse_yaml(text: str, label: str, needs: str = STUDY_NEEDS) -> Document:
    """The document in a text, whose lines are named after `label`."""
    try:
        node = yaml.compose(text, Loader=_PlainLoader)
        if node is None:
            raise UserError(f"{label}:1: the file is empty; {needs}")
        return _Builder(label).build(node)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{label}:{line}: a character that YAML does not allow; remove it") from None
    except yaml.MarkedYAMLError as error:
        raise UserError(_explain_syntax(error, label)) from None
    except RecursionError:
        raise UserError(f"{label}: nested too deeply to be read; write it flatter") from None


class _PlainLoader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2 does: no dates, no base 60, no `on` for true, and 1e-3 is a number."""

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012
        None: [
            (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$")),
            (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
            (_TAG + "int", re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$")),
            (
                _TAG + "float",
                re.compile(
                    r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$"
                ),
            ),
        ]
    }


class _Builder:
    """Turns nodes into plain values and remembers their lines."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.origins: dict[Key, Origin] = {}
        self.mistakes: list[Mistake] = []
        self.open_nodes: set[int] = set()

    def build(self, node: yaml.Node) -> Document:
        self.origins[()] = self.origin(node)
        value = self.value(node, ())
        return Document(value, self.origins, tuple(self.mistakes))

    def origin(self, node: yaml.Node) -> Origin:
        return Origin(self.label, node.start_mark.line + 1)

    def refuse(self, node: yaml.Node, what: str) -> None:
        self.mistakes.append(Mistake(self.origin(node), what))

    def value(self, node: yaml.Node, key: Key) -> Any:
        self.origins.setdefault(key, self.origin(node))
        if len(self.origins) > MAX_VALUES:
            raise UserError(f"{self.label}: more than {MAX_VALUES} values; write a smaller study")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if id(node) in self.open_nodes:
            self.refuse(node, "an alias that contains itself; write the values out")
            return None
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self.check_tag(node, "seq")
                return [self.value(item, (*key, index)) for index, item in enumerate(node.value)]
            self.check_tag(node, "map")
            return self.mapping(node, key)
        finally:
            self.open_nodes.remove(id(node))

    def mapping(self, node: yaml.Node, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.refuse(key_node, "a key must be a word")
                continue
            word = key_node.value
            line = self.origin(key_node).line
            if word in values:
                self.refuse(key_node, f"{word!r} is given twice, on lines {lines[word]} and {line}; keep one")
                continue
            self.origins[(*key, word)] = self.origin(key_node)
            lines[word] = line
            values[word] = self.value(value_node, (*key, word))
        return values

    def scalar(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.removeprefix(_TAG)
        text = node.value
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            if kind == "float" and math.isfinite(number := float(text)):
                return number
        except (ValueError, KeyError):
            pass
        if kind != "str":
            self.check_tag(node, "null", "bool", "int", "float")
            if kind in ("bool", "int", "float"):
                self.refuse(node, f"{text[:40]!r} is not a finite {kind} that can be read")
            return None
        if _UNPRINTABLE.search(text):
            self.refuse(node, f"an unprintable character in {text[:40]!r}; remove it")
            return _UNPRINTABLE.sub("?", text)
        return text

    def check_tag(self, node: yaml.Node, *allowed: str) -> None:
        if node.tag.removeprefix(_TAG) not in allowed:
            tag = node.tag.replace(_TAG, "!!")
            self.refuse(node, f"the tag {tag} is not allowed; write plain values without tags")


def _read_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the name of the file") from None
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path}: larger than {MAX_FILE_BYTES} bytes; is it the right file?")
    return data


def _decode(data: bytes, label: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{label}:{line}: not UTF-8 text; save the file as UTF-8") from None


def _explain_syntax(error: yaml.MarkedYAMLError, label: str) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    context = f" {error.context}" if error.context else ""
    return f"{label}:{line}: not valid YAML{context}: {error.problem}; mend this line or the one before it"
