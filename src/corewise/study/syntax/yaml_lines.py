"""Read YAML into plain values, with the line of each value and a list of all mistakes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from corewise.errors import UserError

Key = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20
# Aliases can make a small file expand to an enormous document.
MAX_VALUES = 20_000
# Real files have four. Deep nesting would exhaust the stack of a later check.
MAX_LEVELS = 50
# Limits of a message: more would not be read.
MAX_MISTAKES, MAX_LINE_CHARS = 50, 1000

_TAG = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a line of a file, or an option of the command line."""

    label: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.label}:{self.line}" if self.line else self.label


@dataclass(frozen=True)
class Mistake:
    """One mistake that the user has to fix."""

    origin: Origin
    message: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.message}"


@dataclass(frozen=True)
class Document:
    """The plain value of a file and the origin of each of its parts."""

    value: Any
    origins: Mapping[Key, Origin]
    mistakes: tuple[Mistake, ...] = ()

    def find_origin(self, key: Key) -> Origin:
        """Return the origin of the value at `key`, or of its nearest known parent."""
        while key and key not in self.origins:
            key = key[:-1]
        return self.origins[key]


def build_mistakes_error(mistakes: Sequence[Mistake]) -> UserError:
    """Build one error that lists the mistakes, in the order of their lines."""
    ordered = sorted(dict.fromkeys(mistakes), key=lambda each: (each.origin.line == 0, each.origin.line))
    lines = [_cut(str(mistake)) for mistake in ordered[:MAX_MISTAKES]]
    if len(ordered) == 1:
        return UserError(lines[0])
    more = [f"and {len(ordered) - MAX_MISTAKES} more"] if len(ordered) > MAX_MISTAKES else []
    return UserError(f"{len(ordered)} mistakes:\n" + "\n".join(f"  {line}" for line in (*lines, *more)))


def _cut(line: str) -> str:
    """Cut the middle out of a line that a very long name or value would make unreadable."""
    half = MAX_LINE_CHARS // 2
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:half]} … {line[-half:]}"


EMPTY_STUDY_HINT = "a study needs at least `workload: NAME`"


def read_yaml(path: Path, empty_hint: str = EMPTY_STUDY_HINT) -> Document:
    """Read the document in a file, or raise UserError if it cannot be parsed."""
    return parse_yaml(_decode(_read_bytes(path), str(path)), str(path), empty_hint)


def parse_yaml(text: str, label: str, empty_hint: str = EMPTY_STUDY_HINT) -> Document:
    """Parse a document; `label` names the text in messages."""
    try:
        node = yaml.compose(text, Loader=_PlainLoader)
        if node is None:
            raise UserError(f"{label}:1: the file is empty; {empty_hint}")
        return _DocumentBuilder(label).build(node)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{label}:{line}: YAML does not allow this character; remove it") from None
    except yaml.MarkedYAMLError as error:
        raise UserError(_explain_syntax(error, label)) from None
    except _LimitExceeded as error:
        raise UserError(f"{label}:{error}") from None


class _LimitExceeded(Exception):
    """A document with too many values or levels; the text has the line and the limit."""


class _PlainLoader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2 does: no dates, no base 60, no `on` for true, and 1e-3 is a number."""

    num_nodes = 0
    num_levels = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next value; raise _LimitExceeded before a large document takes much time or stack."""
        self.num_nodes += 1
        self.num_levels += 1
        # A mapping has two nodes for each value.
        if self.num_nodes > 2 * MAX_VALUES:
            raise _LimitExceeded(f"{self.line + 1}: more than {MAX_VALUES} values; write a smaller file")
        if self.num_levels > MAX_LEVELS:
            raise _LimitExceeded(f"{self.line + 1}: nested more than {MAX_LEVELS} levels deep; use fewer levels")
        node = super().compose_node(parent, index)
        self.num_levels -= 1
        return node

    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {  # noqa: RUF012
        None: [
            (_TAG + "null", re.compile(r"(?:~|null|Null|NULL|)$")),
            (_TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")),
            (_TAG + "int", re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$")),
            (
                _TAG + "float",
                re.compile(r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$"),
            ),
        ]
    }


class _DocumentBuilder:
    """Turns YAML nodes into plain values and records their lines."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.origins: dict[Key, Origin] = {}
        self.mistakes: list[Mistake] = []
        self.open_nodes: set[int] = set()

    def build(self, node: yaml.Node) -> Document:
        self.origins[()] = self.find_origin(node)
        value = self.build_value(node, ())
        return Document(value, self.origins, tuple(self.mistakes))

    def find_origin(self, node: yaml.Node) -> Origin:
        return Origin(self.label, node.start_mark.line + 1)

    def add_mistake(self, node: yaml.Node, message: str) -> None:
        self.mistakes.append(Mistake(self.find_origin(node), message))

    def build_value(self, node: yaml.Node, key: Key) -> Any:
        self.origins.setdefault(key, self.find_origin(node))
        if len(self.origins) > MAX_VALUES:
            raise UserError(f"{self.label}: more than {MAX_VALUES} values; write a smaller file")
        if isinstance(node, yaml.ScalarNode):
            return self.read_scalar(node)
        if id(node) in self.open_nodes:
            self.add_mistake(node, "the alias contains itself; write out its values")
            return None
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self.check_tag(node, "seq")
                return [self.build_value(item, (*key, index)) for index, item in enumerate(node.value)]
            self.check_tag(node, "map")
            return self.build_mapping(node, key)
        finally:
            self.open_nodes.remove(id(node))

    def build_mapping(self, node: yaml.Node, key: Key) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.add_mistake(key_node, "a key must be a plain text")
                continue
            name = key_node.value
            line = self.find_origin(key_node).line
            if name in values:
                self.add_mistake(key_node, f"{name!r} is given twice, on lines {lines[name]} and {line}; keep one")
                continue
            self.origins[(*key, name)] = self.find_origin(key_node)
            lines[name] = line
            values[name] = self.build_value(value_node, (*key, name))
        return values

    def read_scalar(self, node: yaml.ScalarNode) -> Any:
        tag = node.tag.removeprefix(_TAG)
        text = node.value
        try:
            if tag == "null":
                return None
            if tag == "bool":
                return {"true": True, "false": False}[text.lower()]
            if tag == "int" and math.isfinite(whole := int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))):
                return whole
            if tag == "float" and math.isfinite(number := float(text)):
                return number
        except (ValueError, KeyError, OverflowError):
            # An integer that is too large for a float raises OverflowError.
            pass
        if tag != "str":
            self.check_tag(node, "null", "bool", "int", "float")
            if tag in ("bool", "int", "float"):
                self.add_mistake(node, f"{text[:40]!r} is not a valid, finite {tag}")
            return None
        if _UNPRINTABLE.search(text):
            self.add_mistake(node, f"{text[:40]!r} contains an unprintable character; remove it")
            return _UNPRINTABLE.sub("?", text)
        return text

    def check_tag(self, node: yaml.Node, *allowed: str) -> None:
        if node.tag.removeprefix(_TAG) not in allowed:
            tag = node.tag.replace(_TAG, "!!")
            self.add_mistake(node, f"the tag {tag} is not allowed; write plain values without tags")


def _read_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the path") from None
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
    return f"{label}:{line}: not valid YAML{context}: {error.problem}; fix this line or the one before it"
