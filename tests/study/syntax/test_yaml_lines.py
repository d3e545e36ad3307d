from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.errors import UserError
from corewise.study.syntax.yaml_lines import Mistake, Origin, build_mistakes_error, parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("0x10", 16),
        ("0o17", 15),
        ("010", "010"),
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("on", "on"),
        ("no", "no"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("'3'", "3"),
        ("!!str 3", "3"),
        (".nan", ".nan"),
        ("= allocation // processes", "= allocation // processes"),
    ],
)
def test_scalars_are_read_without_surprises(text: str, value: object) -> None:
    result = parse_yaml(f"key: {text}", "f").value["key"]
    assert result == value
    assert type(result) is type(value)


def test_every_value_knows_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  - x\n  - c: 2\n", "f.yaml")
    assert str(document.find_origin(("a",))) == "f.yaml:1"
    assert str(document.find_origin(("b", 0))) == "f.yaml:3"
    assert str(document.find_origin(("b", 1, "c"))) == "f.yaml:4"
    assert str(document.find_origin(("b", 7, "unknown"))) == "f.yaml:2"


def test_a_duplicate_key_names_both_lines() -> None:
    document = parse_yaml("a: 1\nb: 2\na: 3\n", "f.yaml")
    assert [str(m) for m in document.mistakes] == ["f.yaml:3: 'a' is given twice, on lines 1 and 3; keep one"]


@pytest.mark.parametrize(
    "tagged",
    ["!!python/object/apply:os.getcwd []", "!!python/name:os.system x", "!mine x", "!!binary aGk=", "!!set {a}"],
)
def test_tags_are_refused_and_never_acted_upon(tagged: str) -> None:
    mistakes = parse_yaml(f"a: 1\nb: {tagged}\n", "f.yaml").mistakes
    assert len(mistakes) == 1
    assert "f.yaml:2: the tag !" in str(mistakes[0])
    assert "is not allowed" in str(mistakes[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1e999", "'1e999' is not a valid, finite float"),
        ("a: " + "9" * 5000, "is not a valid, finite int"),
        ("a: !!int x", "'x' is not a valid, finite int"),
        ('a: "x\\0y"', "contains an unprintable character"),
        ('a: "\\ud800"', "contains an unprintable character"),
        ("a: &x [*x]", "the alias contains itself"),
        ("? [a, b]\n: 1", "a key must be a plain text"),
    ],
)
def test_odd_values_are_mistakes_with_a_line(text: str, expected: str) -> None:
    (mistake,) = parse_yaml(text, "f.yaml").mistakes
    assert str(mistake).startswith("f.yaml:1: ")
    assert expected in str(mistake)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1, 2\nc: 3\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\nb: 'x\n", 3),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: *nowhere\n", 1),
        ("a: 1\nb: \x01\n", 2),
    ],
)
def test_bad_syntax_names_the_line(text: str, line: int) -> None:
    with pytest.raises(UserError, match=rf"^f\.yaml:{line}: "):
        parse_yaml(text, "f.yaml")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("# only a comment\n")
    with pytest.raises(UserError, match=r"empty\.yaml:1: the file is empty"):
        read_yaml(path)


def test_text_that_is_not_utf_8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"question: x\nworkload: r\xe9snet\n")
    with pytest.raises(UserError, match=r"latin\.yaml:2: not UTF-8"):
        read_yaml(path)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path).value == {"a": 1}


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_bytes(b"#" * (1 << 20) + b"\na: 1\n")
    with pytest.raises(UserError, match="larger than 1048576 bytes"):
        read_yaml(path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


@pytest.mark.parametrize("start", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("num", [60, 2000])
def test_deep_nesting_is_refused_with_its_line(start: str, num: int) -> None:
    with pytest.raises(UserError, match=r"f\.yaml:2: nested more than 50 levels deep; use fewer levels"):
        parse_yaml("#\n" + start * num, "f.yaml")


def test_a_file_of_very_many_values_is_refused_before_it_is_built() -> None:
    with pytest.raises(UserError, match=r"f\.yaml:1: more than 20000 values"):
        parse_yaml("[" + "a," * 50_000 + "]", "f.yaml")


def test_aliases_cannot_make_a_small_file_enormous() -> None:
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in zip("abcdef", "bcdefg", strict=True)]
    with pytest.raises(UserError, match="more than 20000 values"):
        parse_yaml("\n".join(lines), "f.yaml")


def test_mistakes_are_listed_in_the_order_of_lines() -> None:
    result = [Mistake(Origin("--set x"), "third"), Mistake(Origin("f", 9), "second"), Mistake(Origin("f", 2), "first")]
    assert str(build_mistakes_error(result)) == "3 mistakes:\n  f:2: first\n  f:9: second\n  --set x: third"


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_with_its_label(text: str) -> None:
    try:
        messages = [str(mistake) for mistake in parse_yaml(text, "f.yaml").mistakes]
    except UserError as error:
        messages = [str(error)]
    assert all(line.startswith("f.yaml") for line in messages)


@pytest.mark.parametrize("text", ["1" + "0" * 400, "-1" + "0" * 400, "0x" + "f" * 5000, "9" * 5000])
def test_an_integer_that_no_float_can_hold_is_a_mistake(text: str) -> None:
    document = parse_yaml(f"a: {text}", "f.yaml")
    assert document.value == {"a": None}
    assert [str(each) for each in document.mistakes] == [f"f.yaml:1: {text[:40]!r} is not a valid, finite int"]


def test_only_the_first_of_very_many_mistakes_are_listed() -> None:
    mistakes = [Mistake(Origin("f", line), "x" * 5000) for line in range(1, 1001)]
    lines = str(build_mistakes_error(mistakes)).splitlines()
    assert lines[0] == "1000 mistakes:"
    assert lines[-1] == "  and 950 more"
    assert len(lines) == 52
    assert max(map(len, lines)) < 1100
