"""Mutations for `fuzz_readers.py`: of values, of YAML text, of bytes, and of sealed lines. All are seeded."""

import itertools
import json
import re
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from corewise.errors import UserError
from corewise.study.syntax.yaml_lines import parse_yaml

# Larger inputs are cut, so that a case stays short.
MAX_BYTES = 300_000
SEAL = re.compile(rb',"crc":"[0-9a-f]{8}"\}\n?$')
# Stands for a value that is nested deeper than Python's own writer allows.
DEEP = "@deep@"
SCALARS: Sequence[Any] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    0.5,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    2**31,
    2**63,
    2**80,
    10**400,
    -(10**400),
    "",
    "text",
    "= allocation // 2",
    "= 1 / 0",
    "= threads",
    "9" * 5000,
    "0x" + "f" * 5000,
    "1e999",
    "NaN",
    "\x00",
    "\x1b[31m",
    "a\ud800b",
    "\u202e\u200d\ufeff",
    "é" * 300,
    "/../../etc/passwd",
    "a\nb\r\nc\u2028d",
    DEEP,
)
CONTAINERS: Sequence[Any] = ([], {}, [[]], [None], {"": None}, {"a": {"b": ["c"]}}, list(range(300)))
TOKENS = (
    "- ",
    ": ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!!int ",
    "!!binary ",
    "<<: *a",
    "|\n",
    ">\n",
    "#",
    "---\n",
)
TOKENS += ("%YAML 1.2\n", "'", '"', "\t", "\0", "\ufeff", "\u2028", "~", ".inf", ".nan", "0o17", "1_000", "=", "=\n")
# The parts by which a reader of sealed lines searches for records in a damaged line.
LINE_PARTS = (b'{"schema":', b',"crc":"00000000"}', b'{"schema":1,"crc":"00000000"}')


def mutate_value(dice: Random, value: Any, donor: Any) -> Any:
    """Return the value with one to four changes at random places, some of them parts of the donor."""
    holder = [_copy(value)]
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        parent, key = _choose_place(dice, holder)
        _change(dice, parent, key, donor)
    return holder[0] if holder else None


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(each) for name, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


def _choose_place(dice: Random, holder: list[Any]) -> tuple[Any, Any]:
    """Walk down to a random place; return its container and its key."""
    parent: Any = holder
    key: Any = 0
    while isinstance(parent[key], (dict, list)) and parent[key] and dice.random() < 0.8:
        parent = parent[key]
        key = dice.choice(list(parent)) if isinstance(parent, dict) else dice.randrange(len(parent))
    return parent, key


def _change(dice: Random, parent: Any, key: Any, donor: Any) -> None:
    value, change = parent[key], dice.randrange(9)
    if change == 0 and len(parent) > 1:
        del parent[key]
    elif change == 1 and isinstance(parent, list):
        parent[key:key] = [value] * (1 if isinstance(value, (dict, list)) else dice.choice((1, 2, 1000)))
    elif change == 2 and isinstance(parent, dict):
        parent[_make_name(dice, key)] = value
    elif change == 3:
        parent[key] = _nest(dice, value)
    elif change == 4:
        parent[key] = _copy(_choose_part(dice, donor))
    elif change == 5:
        parent[key] = _copy(dice.choice(CONTAINERS))
    elif change == 6:
        parent[key] = _retype(value)
    else:
        parent[key] = dice.choice(SCALARS)


def _make_name(dice: Random, name: str) -> str:
    names = (
        f"{name}{dice.randrange(10)}",
        name[:-1],
        name.upper(),
        "x" * 2000,
        "args.x",
        "",
        "\ud800",
        "a b",
        f"{name} ",
    )
    return dice.choice(names)


def _nest(dice: Random, value: Any) -> Any:
    for _ in range(dice.choice((1, 2, 30, 60, 120))):
        value = [value] if dice.random() < 0.5 else {"a": value}
    return value


def _choose_part(dice: Random, value: Any) -> Any:
    while isinstance(value, (dict, list)) and value and dice.random() < 0.7:
        value = dice.choice(list(value.values()) if isinstance(value, dict) else value)
    return value


def _retype(value: Any) -> Any:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list):
        return {str(i): each for i, each in enumerate(value)}
    return str(value)


def mutate_text(dice: Random, text: str) -> str:
    """Return YAML text with changed lines, tokens or aliases."""
    lines = text.split("\n")
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = dice.randrange(len(lines))
        line = lines[place]
        change = dice.randrange(8)
        if change == 0:
            del lines[place : place + dice.choice((1, 2))]
        elif change == 1:
            lines[place:place] = [line] * dice.choice((1, 1, 500))
        elif change == 2:
            lines[place] = " " * dice.randrange(8) + line.lstrip()
        elif change == 3:
            lines.insert(place, _make_bomb(dice))
        elif change == 4:
            lines[place] = line.replace(": ", ": &a ", 1) if dice.random() < 0.5 else re.sub(r": .*", ": *a", line)
        elif change == 5:
            lines.insert(place, f"{'k' * dice.choice((100, 1100, 50_000))}: 1")
        else:
            at = dice.randrange(len(line) + 1)
            lines[place] = line[:at] + dice.choice(TOKENS) + line[at:]
        lines = lines or [""]
    return "\n".join(lines)


def _make_bomb(dice: Random) -> str:
    """Return lines whose aliases stand for very many values, or for themselves."""
    width, names = dice.choice((2, 9)), "abcdefghij"
    lines = ["a: &a [x, x]"]
    for before, name in itertools.pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * width)}]")
    return dice.choice(("\n".join(lines), "axes: &a {threads: *a}", "axes: &a [*a, *a]"))


def mutate_bytes(dice: Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Return the bytes with flips, truncation, insertions or splices."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(changed) + 1)
        change = dice.randrange(6)
        if change == 0 and at < len(changed):
            changed[at] ^= 1 << dice.randrange(8)
        elif change == 1:
            del changed[at:]
        elif change == 2:
            del changed[at : at + dice.randrange(1, 50)]
        elif change == 3:
            donor = dice.choice(donors)
            start = dice.randrange(len(donor) + 1)
            changed[at : at + dice.choice((0, 20))] = donor[start : start + dice.randrange(1, 400)]
        elif change == 4:
            changed[at:at] = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 9)))
        else:
            piece = bytes(changed[at : at + dice.randrange(1, 30)]) if dice.random() < 0.9 else dice.choice(LINE_PARTS)
            changed[at:at] = piece * dice.choice((2, 10, 300, 2000))
    return bytes(changed[:MAX_BYTES])


def mutate_yaml(dice: Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Mutate a YAML file by its values, its text or its bytes."""
    choice = dice.random()
    if choice < 0.5:
        # JSON is YAML, and is written much faster.
        return _dump_json(dice, mutate_value(dice, _load_yaml(data), _load_yaml(dice.choice(donors))))
    if choice < 0.9:
        return mutate_text(dice, data.decode("utf-8", "replace")).encode("utf-8", "surrogatepass")[:MAX_BYTES]
    return mutate_bytes(dice, data, donors)


def mutate_json(dice: Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Mutate a JSON file by its values or its bytes."""
    value = _load_json(data)
    if value is None or dice.random() < 0.2:
        return mutate_bytes(dice, data, donors)
    return _dump_json(dice, mutate_value(dice, value, _load_json(dice.choice(donors))))


def mutate_line(dice: Random, data: bytes, donors: Sequence[bytes]) -> bytes:
    """Mutate sealed lines: their values under a valid checksum, or their bytes."""
    choice = dice.random()
    if choice < 0.3:
        return mutate_bytes(dice, data, donors)
    line = dice.choice(data.splitlines() or [b""])
    value = _load_json(line)
    if not isinstance(value, dict):
        return mutate_bytes(dice, data, donors)
    if choice < 0.4:
        body = mutate_bytes(dice, SEAL.sub(b"", line), donors).replace(b"\n", b" ")
    else:
        value.pop("crc", None)
        body = _dump_json(dice, mutate_value(dice, value, _load_json(dice.choice(donors))))[:-1]
    return seal_body(body) + dice.choice((b"", b"", dice.choice(donors)))


def seal_body(body: bytes) -> bytes:
    """Return the line of an object without its last brace, with a valid checksum."""
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def _dump_json(dice: Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5, separators=dice.choice(((",", ":"), (", ", ": "))))
    if DEEP in text:
        num = dice.choice((250, 260, 500, 1010, 5000))
        start, end = dice.choice((("[", "]"), ('{"a":', "}")))
        text = text.replace(f'"{DEEP}"', f"{start * num}1{end * num}")
    return text.encode("utf-8", "surrogatepass")[:MAX_BYTES]


_parsed: dict[bytes, Any] = {}


def _cache(load: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Keep what was parsed, because most mutations start from few seeds."""

    def load_once(data: bytes) -> Any:
        if data not in _parsed:
            if len(_parsed) > 5000:
                _parsed.clear()
            try:
                _parsed[data] = load(data)
            except (ValueError, UserError, RecursionError):
                _parsed[data] = None
        return _copy(_parsed[data])

    return load_once


_load_json = _cache(lambda data: json.loads(SEAL.sub(b"}", data)))
# The reader itself, because it limits what aliases stand for.
_load_yaml = _cache(lambda data: parse_yaml(data.decode("utf-8", "replace"), "seed").value)
