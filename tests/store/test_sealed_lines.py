import json
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corewise.store import sealed_lines
from corewise.store.sealed_lines import scan_file, scan_lines, seal

OBJECTS = [
    {"schema": 1, "trial_id": f"t{i}", "text": 'é }{ " , x', "number": 12345.678 + i, "deep": {"schema": [1]}}
    for i in range(4)
]
DATA = b"".join(seal(each) for each in OBJECTS)
ENDS = [i + 1 for i, byte in enumerate(DATA) if byte == 10]


def found(data):
    entries = list(scan_lines(lines_of(data)))
    values = [{k: v for k, v in e.value.items() if k != "crc"} for e in entries if e.value is not None]
    return values, [e for e in entries if e.damage]


def lines_of(data):
    """Lines as a binary file gives them."""
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def untouched(position, length=1):
    """The objects whose line, newline aside, has no byte in the range."""
    starts = [0, *ENDS[:-1]]
    return [
        each
        for each, start, end in zip(OBJECTS, starts, ENDS, strict=True)
        if position + length <= start or position >= end - 1
    ]


def test_a_sealed_line_is_json_with_its_checksum_as_the_last_key():
    line = seal(OBJECTS[0])
    assert line.endswith(b"\n")
    data = json.loads(line)
    assert list(data)[-1] == "crc"
    assert {k: v for k, v in data.items() if k != "crc"} == OBJECTS[0]


def test_what_was_sealed_is_found_without_damage():
    assert found(DATA) == (OBJECTS, [])


def test_a_line_that_does_not_begin_with_its_schema_is_not_sealed():
    with pytest.raises(ValueError, match="must begin with its schema"):
        seal({"trial_id": "x", "schema": 1})


def test_any_flipped_bit_is_named_and_costs_at_most_its_own_line():
    for position in range(len(DATA)):
        for bit in range(8):
            changed = bytearray(DATA)
            changed[position] ^= 1 << bit
            values, damage = found(bytes(changed))
            assert values == untouched(position), (position, bit)
            assert damage, (position, bit)


def test_a_byte_inserted_anywhere_is_named_and_costs_at_most_its_own_line():
    for position in range(len(DATA) + 1):
        for byte in (b"\n", b"\0", b"\xff", b"0", b"\t"):
            values, damage = found(DATA[:position] + byte + DATA[position:])
            assert values == untouched(position, 0), (position, byte)
            assert damage, (position, byte)


def test_a_byte_lost_anywhere_is_named_and_costs_at_most_its_own_line():
    for position in range(len(DATA)):
        values, damage = found(DATA[:position] + DATA[position + 1 :])
        assert values == untouched(position), position
        assert damage, position


def test_a_file_cut_anywhere_keeps_the_lines_before_the_cut_and_names_the_torn_one():
    for position in range(len(DATA)):
        values, damage = found(DATA[:position])
        assert values == [each for each, end in zip(OBJECTS, ENDS, strict=True) if end - 1 <= position]
        between_lines = position == 0 or position in ENDS
        assert bool(damage) != between_lines, position


def test_a_damage_is_given_by_line_and_byte():
    broken = DATA.replace(b"12346.678", b"12346.679")
    _, damage = found(broken)
    assert [(d.line, d.offset) for d in damage] == [(2, ENDS[0])]
    assert "checksum does not match" in damage[0].damage


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\n", "an empty line"),
        (b"hello\n", "no checksum"),
        (b"\0" * 40 + b"\n", "NUL bytes"),
        (b"\xff\xfe\n", "not UTF-8 at byte 0"),
        (DATA[:30], "truncated"),
        (DATA[: ENDS[0] - 1], "no newline"),
        (b'[1],"crc":"00000000"}\n', "checksum does not match"),
    ],
)
def test_each_category_of_damage_has_its_own_message(line, reason):
    _, damage = found(line)
    assert [reason in each.damage for each in damage] == [True]


def test_records_that_ran_together_because_a_newline_was_lost_are_both_read():
    values, damage = found(DATA.replace(b"\n", b"", 1))
    assert values == OBJECTS
    assert "2 intact records in it could be read" in damage[0].damage


@given(st.binary(max_size=300))
def test_no_bytes_whatever_raise(data):
    for entry in scan_lines(lines_of(data)):
        assert entry.damage


@given(st.integers(0, 2**32))
def test_blocks_written_over_at_random_never_yield_an_object_that_was_not_sealed(seed):
    dice = random.Random(seed)
    start = dice.randrange(len(DATA))
    length = dice.randrange(1, 200)
    values, damage = found(DATA[:start] + dice.randbytes(length) + DATA[start + length :])
    assert all(value in OBJECTS for value in values)
    assert damage
    assert all(each in values for each in untouched(start, length))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def sealed_by_hand(value):
    """A sealed line such as other writers may make it: NaN and escapes as Python writes them."""
    body = json.dumps(value)[:-1].encode()
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_whatever_pythons_reader_takes_is_read_as_it_reads_it(params):
    value = {"schema": 1, "params": params, "list": [1e-7, -0.0, 0.1, 12345678901234567]}
    [entry] = scan_lines([sealed_by_hand(value)])
    wanted = json.loads(json.dumps(value))
    if not any(beyond_64_bits(each) for each in params.values() if isinstance(each, (list, dict))):
        assert repr(entry.value) == repr(wanted)


def beyond_64_bits(value):
    """True when a large integer stands deeper than a parameter's own value, where it may become a float."""
    if isinstance(value, (list, dict)):
        return any(map(beyond_64_bits, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) >= 2**63


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", "-Infinity", "1e999", str(2**80), str(-(2**70))])
def test_a_parameter_that_strict_json_lacks_or_rounds_is_kept(text):
    body = b'{"schema":1,"params":{"x":%s}' % text.encode()
    [entry] = scan_lines([body + b',"crc":"%08x"}\n' % zlib.crc32(body)])
    assert repr(entry.value["params"]["x"]) == repr(json.loads(text))
    assert entry.is_strict == text.lstrip("-").isdigit()


def test_the_text_of_an_object_amid_damage_is_its_own():
    line = b"xx" + DATA[: ENDS[0] - 1] + b"yy\n"
    damage, entry = scan_lines([line])
    assert damage.damage
    assert (entry.text, entry.start) == (DATA[: ENDS[0] - 1], 2)


@pytest.mark.parametrize(
    "line", [b'{"schema":' * 2000 + b',"crc":"00000000"}' * 2000, b'{"schema":,"crc":"00000000"}' * 2000]
)
def test_a_hostile_line_is_searched_in_linear_time(monkeypatch, line):
    tried = []
    monkeypatch.setattr(sealed_lines, "unseal", lambda text: tried.append(len(text)))
    [entry] = scan_lines([line + b"\n"])
    assert entry.damage
    assert sum(tried) <= 8 * len(line)


def test_an_object_that_contains_others_like_records_is_found_in_a_damaged_line():
    value = {"schema": 1, "params": {"schema": 2, "inner": {"schema": 3}}, "more": [{"schema": 4}]}
    entries = list(scan_lines([b'{"schema":1,"torn' + seal(value)]))
    assert [entry.value for entry in entries] == [None, value]


def test_a_line_longer_than_any_record_is_skipped_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed_lines, "MAX_LINE_BYTES", 1000)
    whole = seal({"schema": 1, "name": "whole"})
    path = tmp_path / "lines"
    path.write_bytes(whole + b"x" * 5000 + b"\n" + whole + b"y" * 1000)
    with path.open("rb") as file:
        entries = list(scan_file(file))
    assert [entry.line for entry in entries] == [1, 2, 3, 4]
    assert [entry.offset for entry in entries] == [0, len(whole), len(whole) + 5001, 2 * len(whole) + 5001]
    assert [entry.damage.startswith("longer than") for entry in entries] == [False, True, False, True]
