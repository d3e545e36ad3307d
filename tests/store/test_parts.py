import random

import pytest
from keeping import trial_id
from made_records import made_record

from corewise.spec.record import Record
from corewise.store.lines import seal
from corewise.store.parts import Part, parts_of, read_part
from corewise.store.reader import read_contents, read_files, told_damage
from corewise.store.store import Store


def small(trial_id: str, **changes) -> Record:
    return Record(**{"trial_id": trial_id, "study": "s", "status": "ok", **changes})


@pytest.fixture
def damaged(tmp_path):
    """Two files of records, some lines of which are not whole, and what stands in them."""
    dice = random.Random(3)
    for name in ("a.jsonl", "b.jsonl"):
        lines = [seal(small(f"{name[0]}{i}", reason="x" * dice.randrange(300)).to_json()) for i in range(40)]
        lines[7] = lines[7][:20] + b"?" + lines[7][21:]
        lines[20] = b"\n"
        lines[30] = lines[30].rstrip(b"\n")  # runs together with the next
        (tmp_path / name).write_bytes(b"".join(lines) + b'{"schema":1,"trial_id":"torn')
    return sorted(tmp_path.iterdir())


@pytest.mark.parametrize("part_bytes", [1, 50, 333, 4000, 10**6])
def test_parts_of_any_size_hold_every_line_of_the_files_once(damaged, part_bytes):
    for path in damaged:
        parts = list(parts_of([path], part_bytes))
        text = path.read_bytes()
        assert b"".join(text[part.start : part.end] for part in parts) == text
        assert all(text[part.end - 1 : part.end] == b"\n" for part in parts[:-1])
        assert parts[-1].end is None


@pytest.mark.parametrize("part_bytes", [1, 50, 333, 4000])
def test_records_and_damage_do_not_depend_on_the_parts(damaged, part_bytes, monkeypatch):
    whole = read_contents(damaged, trial_id)
    assert [d.line for d in whole.damage] == [8, 21, 31, 40] * 2
    cut = [read_part(part, trial_id) for part in parts_of(damaged, part_bytes)]
    assert [each.kept for read in cut for each in read.found] == [
        each.kept for path in damaged for each in read_part(Part(path, 0, None), trial_id).found
    ]
    monkeypatch.setattr("corewise.store.reader.parts_of", lambda paths: parts_of(paths, part_bytes))
    assert read_contents(damaged, trial_id) == whole


def test_what_is_appended_after_the_parts_were_cut_belongs_to_the_last(damaged):
    *_, last = parts_of(damaged[:1], 500)
    with open(damaged[0], "ab") as file:
        file.write(b"\n" + seal(small("later").to_json()))
    assert read_part(last, trial_id).found[-1].kept == "later"


def test_a_file_that_cannot_be_opened_is_one_part_and_named(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    [part] = parts_of([tmp_path / "folder.jsonl"])
    [damage] = read_part(part, trial_id).damage
    assert (damage.line, "Is a directory" in damage.reason) == (0, True)


def test_a_place_leads_to_the_very_record_even_amid_damage(damaged):
    result = read_files(damaged)
    assert len(result.places) == len(result.records) == 76
    again = list(Store(damaged[0].parent).at(result.places))
    assert tuple(again) == result.records


def test_like_damage_of_a_file_is_told_in_one_line_with_the_version(tmp_path):
    newer = made_record("a").to_json() | {"schema": 7}
    (tmp_path / "x.jsonl").write_bytes(b"".join(seal(newer | {"trial_id": str(i)}) for i in range(500)))
    result = read_files([tmp_path / "x.jsonl"])
    assert (result.records, len(result.damage)) == ((), 500)
    [told] = told_damage(result.damage)
    assert told == (
        f"{tmp_path / 'x.jsonl'}, 500 lines from 1 on: "
        "record schema 7 is newer than this Corewise reads (1): update Corewise"
    )


def test_of_much_damage_the_first_is_told_and_the_rest_is_counted(tmp_path):
    lines = [b"x" * i + b"\xff\n" for i in range(30)]
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    told = told_damage(read_files([tmp_path / "x.jsonl"]).damage, limit=4)
    assert len(told) == 5
    assert "line 4 (byte" in told[3]
    assert told[4] == "and 26 more: see `corewise status --json`"
