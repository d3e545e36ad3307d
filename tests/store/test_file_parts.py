import random

import pytest
from made_records import made_record
from record_extractors import trial_id

from corewise.store.file_parts import FilePart, read_part, split_files
from corewise.store.record_reader import describe_damage, read_contents, read_files
from corewise.store.sealed_lines import seal
from corewise.store.store import Store
from corewise.study.record import Record


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
        parts = list(split_files([path], part_bytes))
        text = path.read_bytes()
        assert b"".join(text[part.start : part.end] for part in parts) == text
        assert all(text[part.end - 1 : part.end] == b"\n" for part in parts[:-1])
        assert parts[-1].end is None


@pytest.mark.parametrize("part_bytes", [1, 50, 333, 4000])
def test_records_and_damage_do_not_depend_on_the_parts(damaged, part_bytes, monkeypatch):
    whole = read_contents(damaged, trial_id)
    assert [d.line for d in whole.damage] == [8, 21, 31, 40] * 2
    cut = [read_part(part, trial_id) for part in split_files(damaged, part_bytes)]
    assert [each.value for read in cut for each in read.records] == [
        each.value for path in damaged for each in read_part(FilePart(path, 0, None), trial_id).records
    ]
    monkeypatch.setattr("corewise.store.record_reader.split_files", lambda paths: split_files(paths, part_bytes))
    assert read_contents(damaged, trial_id) == whole


def test_what_is_appended_after_the_parts_were_cut_belongs_to_the_last(damaged):
    *_, last = split_files(damaged[:1], 500)
    with open(damaged[0], "ab") as file:
        file.write(b"\n" + seal(small("later").to_json()))
    assert read_part(last, trial_id).records[-1].value == "later"


def test_a_file_that_cannot_be_opened_is_one_part_and_named(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    [part] = split_files([tmp_path / "folder.jsonl"])
    [damage] = read_part(part, trial_id).damage
    assert (damage.line, "Is a directory" in damage.reason) == (0, True)


def test_a_place_leads_to_the_very_record_even_amid_damage(damaged):
    result = read_files(damaged)
    assert len(result.places) == len(result.records) == 76
    again = list(Store(damaged[0].parent).read_at(result.places))
    assert tuple(again) == result.records


def test_like_damage_of_a_file_is_reported_in_one_line_with_the_version(tmp_path):
    newer = made_record("a").to_json() | {"schema": 7}
    (tmp_path / "x.jsonl").write_bytes(b"".join(seal(newer | {"trial_id": str(i)}) for i in range(500)))
    result = read_files([tmp_path / "x.jsonl"])
    assert (result.records, len(result.damage)) == ((), 500)
    [lines] = describe_damage(result.damage)
    assert lines == (
        f"{tmp_path / 'x.jsonl'}, 500 lines from 1 on: "
        "record schema 7 is newer than this Corewise reads (1): update Corewise"
    )


def test_of_much_damage_the_first_is_reported_and_the_rest_is_counted(tmp_path):
    lines = [b"x" * i + b"\xff\n" for i in range(30)]
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    lines = describe_damage(read_files([tmp_path / "x.jsonl"]).damage, limit=4)
    assert len(lines) == 5
    assert "line 4 (byte" in lines[3]
    assert lines[4] == "and 26 more: see `corewise status --json`"
