import errno
import gc
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_records import made_record

from corewise.errors import UserError
from corewise.store import sealed_lines
from corewise.store.brief_records import extract_outline
from corewise.store.compact_values import PackedMapping
from corewise.store.export import export_records
from corewise.store.line_writer import RecordWriter, StoreFull, is_full, is_record_file
from corewise.store.record_reader import read_file, read_files
from corewise.store.sealed_lines import scan_lines, seal
from corewise.store.store import Store
from corewise.study.record import Record

APPEND_MANY = """
import sys
from corewise.study.record import Record
from corewise.store.store import Store
store = Store.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    store.append(Record(trial_id=f"{sys.argv[2]}{i}", study="s", status="ok", reason="x" * (i * 37 % 5000)))
"""


def small(trial_id: str, **changes) -> Record:
    return Record(**{"trial_id": trial_id, "study": "s", "status": "ok", "params": {"threads": 2}, **changes})


def filled(path: Path, *records: Record) -> Store:
    store = Store.open(path)
    for record in records:
        store.append(record)
    return store


def only_file(store: Store) -> Path:
    (path,) = store.records_folder.iterdir()
    return path


def appender(path: Path, prefix: str, num_records: int) -> subprocess.Popen:
    arguments = [sys.executable, "-c", APPEND_MANY, str(path), prefix, str(num_records)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_records_come_back_as_they_were_appended(tmp_path):
    records = (made_record("a"), made_record("b", status="failed", reason="out of memory", kind="memory"))
    with filled(tmp_path / "store", *records):
        result = Store.open(tmp_path / "store", create=False).read_records()
    assert result.records == records
    assert (result.damage, result.duplicates) == ((), ())


def test_a_record_file_is_json_lines_that_anyone_can_read(tmp_path):
    store = filled(tmp_path, small("a", question="Größe?"), small("b"))
    lines = only_file(store).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["trial_id"] for line in lines] == ["a", "b"]
    assert "Größe?" in lines[0]
    assert is_record_file(only_file(store).name)
    assert json.loads((tmp_path / "corewise-store.json").read_text())["schema"] == 1


def test_opening_what_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(UserError, match=r"here does not exist.*`corewise run STUDY --store '.*here'`") as error:
        Store.open(tmp_path / "nothing here", create=False)
    assert str(tmp_path) in str(error.value)
    assert not (tmp_path / "nothing here").exists()


def test_opening_a_folder_that_is_no_store_says_so(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not a Corewise store"):
        Store.open(tmp_path, create=False)
    with pytest.raises(UserError, match=r"contains other files \(thesis.tex\)"):
        Store.open(tmp_path, create=True)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_opening_a_file_as_a_store_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("x")
    for create in (True, False):
        with pytest.raises(UserError, match="Not a directory"):
            Store.open(tmp_path / "file", create=create)


def test_a_store_whose_making_was_killed_half_way_is_created_again(tmp_path):
    (tmp_path / ".corewise-store.json.123.part").write_text("{")
    (tmp_path / "records").mkdir()
    filled(tmp_path, small("a"))
    assert Store.open(tmp_path, create=False).read_done_ids() == {"a"}


def test_reading_leaves_no_trace(tmp_path):
    store = Store.open(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert store.read_records().records == ()
    assert store.read_done_ids() == set()
    assert store.list_work_ids() == []
    assert sorted(tmp_path.rglob("*")) == before


def test_a_newer_store_is_refused_with_its_version(tmp_path):
    (tmp_path / "corewise-store.json").write_bytes(seal({"schema": 9, "created_at": "later"}))
    with pytest.raises(UserError, match="schema version 9, newer"):
        Store.open(tmp_path, create=False)


def test_an_older_store_that_nothing_reads_is_refused_with_its_version(tmp_path):
    (tmp_path / "corewise-store.json").write_bytes(seal({"schema": 0, "created_at": "long ago"}))
    with pytest.raises(UserError, match=r"schema version 0, older than this Corewise reads \(1\): read it"):
        Store.open(tmp_path, create=False)


@pytest.mark.parametrize("schema", ["1", None, True, 1.0])
def test_a_marker_without_a_version_is_damage_and_the_records_are_read(tmp_path, schema):
    filled(tmp_path, small("a"))
    (tmp_path / "corewise-store.json").write_bytes(seal({"schema": schema}))
    result = Store.open(tmp_path, create=False).read_records()
    assert ([r.trial_id for r in result.records], len(result.damage)) == (["a"], 1)


def test_a_damaged_or_lost_marker_is_named_and_the_records_are_read(tmp_path):
    filled(tmp_path, small("a"))
    marker = tmp_path / "corewise-store.json"
    whole = marker.read_bytes()
    for position in range(len(whole)):
        marker.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        result = Store.open(tmp_path, create=False).read_records()
        assert [r.trial_id for r in result.records] == ["a"]
        assert [d.file.name for d in result.damage] == ["corewise-store.json"], position
    marker.unlink()
    result = Store.open(tmp_path, create=False).read_records()
    assert [d.file.name for d in result.damage] == ["corewise-store.json"]


def test_every_status_is_done_and_what_was_never_recorded_is_not(tmp_path):
    store = filled(tmp_path, small("a"), small("b", status="failed"), small("c", status="skipped"))
    assert store.read_done_ids() == {"a", "b", "c"}


def test_only_trials_whose_records_can_be_read_are_done(tmp_path):
    store = filled(tmp_path, small("a", study='of "mine", \\ and "status":"odd"'), small("b", status="failed"))
    with open(only_file(store), "ab") as file:
        for trial_id, status, schema in (("odd", "perhaps", 1), ("new", "ok", 2)):
            file.write(seal({"schema": schema, "trial_id": trial_id, "study": "s", "status": status}))
        file.write(seal(small("changed").to_json()).replace(b'"s"', b'"t"'))
    fresh = Store.open(tmp_path, create=False)
    assert fresh.read_done_ids() == {r.trial_id for r in fresh.read_records().records} == {"a", "b"}


def test_done_ids_sees_what_others_append_later(tmp_path):
    ours, theirs = Store.open(tmp_path), Store.open(tmp_path)
    for i in range(5):
        theirs.append(small(f"t{i}"))
        ours.append(small(f"o{i}"))
        assert ours.read_done_ids() == theirs.read_done_ids() == {f"{w}{k}" for w in "to" for k in range(i + 1)}


def test_a_record_whose_newline_alone_was_lost_is_done(tmp_path):
    store = filled(tmp_path, small("a"))
    path = only_file(store)
    path.write_bytes(path.read_bytes()[:-1])
    fresh = Store.open(tmp_path)
    assert fresh.read_done_ids() == {"a"}
    assert [r.trial_id for r in fresh.read_records().records] == ["a"]


def test_a_torn_tail_is_skipped_and_named_and_its_trial_is_not_done(tmp_path):
    store = filled(tmp_path, small("a"), small("b"))
    path = only_file(store)
    path.write_bytes(path.read_bytes()[:-20])
    fresh = Store.open(tmp_path)
    fresh.append(small("c"))
    result = fresh.read_records()
    assert {r.trial_id for r in result.records} == fresh.read_done_ids() == {"a", "c"}
    (damage,) = result.damage
    assert (damage.file, damage.line) == (path, 2)
    assert damage.offset == len(path.read_bytes().splitlines()[0]) + 1
    assert "truncated" in str(damage)


def test_a_damage_at_any_byte_of_a_file_costs_one_record_at_most_and_is_named(tmp_path):
    store = filled(tmp_path, *(small(f"t{i}") for i in range(3)))
    whole = only_file(store).read_bytes()
    path = tmp_path / "changed"
    dice = random.Random(7)
    for position in range(len(whole)):
        flip = bytes([whole[position] ^ dice.randrange(1, 256)])
        path.write_bytes(whole[:position] + flip + whole[position + 1 :])
        records, damage = read_file(path, settle_s=0)
        assert len(records) >= 2, position
        assert damage, position


def test_records_of_another_schema_are_named_and_the_rest_is_read(tmp_path):
    store = filled(tmp_path, small("a"))
    with open(only_file(store), "ab") as file:
        file.write(seal({"schema": 7, "trial_id": "new"}))
        file.write(seal({"schema": 1, "status": "ok"}))
    store.append(small("b"))
    result = store.read_records()
    assert [r.trial_id for r in result.records] == ["a", "b"]
    assert [d.line for d in result.damage] == [2, 3]
    assert "record schema 7 is newer" in result.damage[0].reason
    assert "no 'trial_id'" in result.damage[1].reason


def test_records_of_an_older_schema_are_migrated_or_named_with_their_version(tmp_path, monkeypatch):
    store = filled(tmp_path, small("a"))
    with open(only_file(store), "ab") as file:
        file.write(seal(small("old").to_json() | {"schema": 0}))
    [damage] = store.read_records().damage
    assert (damage.file, damage.line) == (only_file(store), 2)
    assert "record schema 0 is too old for this Corewise (1)" in damage.reason
    assert "read it with the version that wrote it" in damage.reason


def test_a_record_file_that_cannot_be_read_is_named(tmp_path):
    store = filled(tmp_path, small("a"))
    (store.records_folder / "folder.jsonl").mkdir()
    result = store.read_records()
    assert [r.trial_id for r in result.records] == ["a"]
    assert [(d.file.name, d.line) for d in result.damage] == [("folder.jsonl", 0)]
    assert store.read_done_ids() == {"a"}


def test_of_a_trial_recorded_twice_the_first_to_finish_counts(tmp_path):
    early = small("a", finished_at="2026-11-15T10:00:00Z", reason="early")
    late = small("a", finished_at="2026-11-15T10:00:00.001+00:00", reason="late")
    undated = small("a", finished_at="", reason="undated")
    filled(tmp_path, undated, late)
    store = filled(tmp_path, early)
    result = store.read_records()
    assert [r.reason for r in result.records] == ["early"]
    assert [r.reason for r in result.duplicates] == ["late", "undated"]
    assert result.damage == ()


def test_a_retry_that_worked_counts_before_the_failure(tmp_path):
    failed = small("a", status="failed", finished_at="2026-11-15T10:00:00Z")
    repaired = small("a", finished_at="2026-11-15T11:00:00Z")
    result = filled(tmp_path, failed, repaired).read_records()
    assert (result.records, result.duplicates) == ((repaired,), (failed,))


def test_a_record_whose_process_had_lost_its_lease_is_late_whoever_finished_first(tmp_path):
    paused = small("a", finished_at="2026-11-15T10:00:00Z", lease="1")
    failed = small("a", status="failed", finished_at="2026-11-15T11:00:00Z", lease="2", replaced_leases=("1",))
    store = filled(tmp_path, paused)
    assert store.read_records().records == (paused,)
    store.append(failed)
    result = store.read_records()
    assert (result.records, result.late, result.duplicates) == ((failed,), (paused,), ())
    assert store.read_records(only=["a"]).late[0].trial_id == "a"


def test_of_a_trial_with_late_records_only_one_counts(tmp_path):
    first, second = (small("a", lease=token, replaced_leases=(token,), finished_at=token) for token in "12")
    result = filled(tmp_path, second, first).read_records()
    assert (len(result.records), len(result.late)) == (1, 1)


def test_records_without_a_lease_are_never_late(tmp_path):
    old, strange = small("a", finished_at="2026-11-15T10:00:00Z"), small("b", replaced_leases=("",))
    assert filled(tmp_path, old, strange).read_records().late == ()


def test_which_of_two_equal_records_counts_does_not_depend_on_the_order_of_reading(tmp_path):
    one, other = (small("a", finished_at="2026-11-15T10:00:00Z", reason=reason) for reason in "xy")
    filled(tmp_path, one)
    store = filled(tmp_path, other)
    files = store._list_files()
    assert read_files(files).records == read_files(reversed(files)).records


def test_a_line_too_long_for_any_record_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(sealed_lines, "MAX_LINE_BYTES", 10_000)
    store = filled(tmp_path, small("a"))
    with only_file(store).open("ab") as file:
        file.write(b"x" * 50_000 + b"\n" + seal(small("b").to_json()))
    result = store.read_records()
    assert [r.trial_id for r in result.records] == ["a", "b"]
    assert [(d.line, d.reason.partition(":")[0]) for d in result.damage] == [(2, "longer than 64 MiB")]
    assert store.read_done_ids() == {"a", "b"}


def test_a_record_too_long_for_readers_is_refused_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("corewise.store.store.MAX_LINE_BYTES", 1000)
    with pytest.raises(UserError, match="more than a store takes"):
        Store.open(tmp_path).append(small("a", reason="x" * 2000))


def test_records_come_in_the_order_they_finished(tmp_path):
    times = ["2026-11-15T10:00:02Z", "2026-11-15T10:00:01.500Z", "2026-11-15T12:00:01+02:00"]
    store = filled(tmp_path, *(small(f"t{i}", finished_at=t) for i, t in enumerate(times)))
    assert [r.trial_id for r in store.read_records().records] == ["t2", "t1", "t0"]


def test_two_processes_appending_at_once_lose_nothing(tmp_path):
    writers = [appender(tmp_path, prefix, 500) for prefix in "ab"]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.close()
    for writer in writers:
        assert writer.wait() == 0
        writer.stdout.close()
    store = Store.open(tmp_path, create=False)
    result = store.read_records()
    assert {r.trial_id for r in result.records} == {f"{w}{i}" for w in "ab" for i in range(500)}
    assert (len(result.records), result.damage) == (1000, ())
    assert store.read_done_ids() == {r.trial_id for r in result.records}
    assert len(list(store.records_folder.iterdir())) == 2


def test_a_killed_writer_costs_at_most_the_record_it_was_writing(tmp_path):
    for round_number in range(8):
        writer = appender(tmp_path, f"k{round_number}-", 1_000_000)
        writer.stdout.readline()
        writer.stdin.write("go\n")
        writer.stdin.flush()
        store = Store.open(tmp_path)
        while len([t for t in store.read_done_ids() if t.startswith(f"k{round_number}-")]) < round_number + 2:
            time.sleep(0.001)
        seen = store.read_done_ids()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdin.close()
        writer.stdout.close()
        result = Store.open(tmp_path).read_records()
        assert {r.trial_id for r in result.records} >= seen
        assert len(result.damage) <= round_number + 1
        assert all("truncated" in d.reason or "newline" in d.reason for d in result.damage)


def test_a_forked_child_writes_to_a_file_of_its_own(tmp_path):
    store = filled(tmp_path, small("parent"))
    pid = os.fork()
    if pid == 0:
        store.append(small("child"))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    store.append(small("parent-2"))
    per_file = [
        [e.value["trial_id"] for e in scan_lines(path.read_bytes().splitlines(keepends=True)) if e.value]
        for path in store.records_folder.iterdir()
    ]
    assert sorted(per_file) == [["child"], ["parent", "parent-2"]]


def test_a_short_write_is_taken_back_and_the_next_one_works(tmp_path):
    store = filled(tmp_path, small("a"))
    path = only_file(store)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        room = len(before) + 50  # the kernel then writes 50 bytes of the line
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        with pytest.raises(UserError, match=r"cannot write to .*File too large; 1 record is safe"):
            store.append(small("b"))
        assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    store.append(small("b"))
    result = store.read_records()
    assert ([r.trial_id for r in result.records], result.damage) == (["a", "b"], ())


def test_a_line_that_could_not_be_taken_back_does_not_spoil_the_next(tmp_path, monkeypatch):
    store = filled(tmp_path, small("a"))
    whole_write = os.write

    def half(fd, data):
        whole_write(fd, data[:30])
        raise OSError(5, "Input/output error")

    def refused(fd, size):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        patch.setattr(os, "ftruncate", refused)
        with pytest.raises(UserError, match="Input/output error"):
            store.append(small("b"))
    store.append(small("c"))
    result = store.read_records()
    assert [r.trial_id for r in result.records] == ["a", "c"]
    assert [d.line for d in result.damage] == [2]


FILL_UP = """
import sys
from corewise.study.record import Record
from corewise.store.store import Store
from corewise.store.line_writer import StoreFull
store = Store.open(sys.argv[1])
num_appended = 0
try:
    while True:
        store.append(Record(trial_id=f"t{num_appended}", study="s", status="ok", reason="x" * 5000))
        num_appended += 1
except StoreFull as error:
    print(error)
    result = Store.open(sys.argv[1], create=False).read_records()
    assert len(result.records) == num_appended > 3, (len(result.records), num_appended)
    assert not result.damage, result.damage
    sys.exit(42)
"""


def test_a_full_disk_is_named_with_the_number_of_records_that_are_safe(tmp_path, need):
    need(shutil.which("unshare") is not None, "unshare, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=64k none {disk} || exit 77; exec "$0" -c "$1" {disk}/store'
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    done = subprocess.run(
        ["unshare", "--mount", *user, "sh", "-c", script, sys.executable, FILL_UP],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    mounted = done.returncode != 77 and not done.stderr.startswith("unshare:")
    need(mounted, f"the right to mount a small disk: {done.stderr}")
    assert done.returncode == 42, done.stderr
    assert f"the disk under {disk}/store is full: " in done.stdout
    assert "records are safe; free space and run again" in done.stdout


def test_store_full_is_a_user_error():
    assert issubclass(StoreFull, UserError)


def test_work_folders_are_named_by_trial_and_nothing_else(tmp_path):
    store = Store.open(tmp_path)
    assert store.get_work_dir("ab12") == tmp_path / "work" / "ab12"
    for bad in ("", "../x", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="not a trial id"):
            store.get_work_dir(bad)
    store.get_work_dir("ab12").mkdir(parents=True)
    assert store.list_work_ids() == ["ab12"]


def test_records_can_be_shortened_as_they_are_read(tmp_path):
    store = filled(tmp_path, made_record("a"), made_record("b"))
    result = store.read_records(lambda record: small(record.trial_id, reason="short"))
    assert [(r.trial_id, r.reason, r.metrics) for r in result.records] == [("a", "short", {}), ("b", "short", {})]


def test_some_trials_can_be_asked_for_alone(tmp_path):
    records = [made_record(trial_id, finished_at=f"2026-11-15T10:00:0{i}Z") for i, trial_id in enumerate("cab")]
    store = filled(tmp_path, *records)
    filled(tmp_path, small("b", status="failed"), small("c", status="failed"))
    result = store.read_records(only={"b", "a", "x"})
    assert result.records == (records[1], records[2])
    assert [r.trial_id for r in result.duplicates] == ["b"]
    assert store.read_records(extract_outline, only={"c"}).records == (extract_outline(records[0]),)
    assert store.read_records(only=()).records == ()


def test_records_are_found_again_at_their_places(tmp_path):
    store = filled(tmp_path, *(made_record(f"t{i}", 0.5 + i) for i in range(5)))
    short = store.read_records(extract_outline)
    assert [r.params for r in short.records] == [{}] * 5
    assert tuple(store.read_at(short.places)) == store.read_records().records
    assert list(store.read_at(short.places[3:4])) == [made_record("t3", 3.5)]


def test_records_come_one_after_the_other_in_the_order_they_finished(tmp_path):
    times = {"a": "2026-11-15T10:00:02Z", "b": "2026-11-15T10:00:01Z"}
    store = filled(tmp_path, *(small(each, finished_at=time) for each, time in times.items()))
    filled(tmp_path, small("a", finished_at="2026-11-15T10:00:09Z"))
    assert [(r.trial_id, r.finished_at) for r in store.iterate_records()] == [("b", times["b"]), ("a", times["a"])]


def test_a_record_that_was_changed_since_it_was_found_is_named(tmp_path):
    store = filled(tmp_path, small("a"), small("b"))
    places = store.read_records(extract_outline).places
    path = only_file(store)
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"c"'))
    with pytest.raises(UserError, match=rf"{path.name} was changed at byte {places[1].offset} while it was read"):
        list(store.read_at(places))
    path.unlink()
    with pytest.raises(UserError, match=rf"{path.name} cannot be read: No such file"):
        list(store.read_at(places))


def test_a_store_of_more_files_than_can_be_open_is_read(tmp_path):
    store = Store.open(tmp_path)
    store.records_folder.mkdir()
    for i in range(100):
        (store.records_folder / f"{i:03d}.jsonl").write_bytes(seal(small(f"t{i:03d}").to_json()))
    names = [f"t{i:03d}" for i in range(100)]
    assert [r.trial_id for r in store.iterate_records()] == names


def test_a_record_that_was_still_in_writing_is_done_once_it_is_whole(tmp_path):
    store = filled(tmp_path, small("a"))
    line = seal(small("b").to_json())
    with only_file(store).open("ab", buffering=0) as file:
        file.write(line[:40])
        assert store.read_done_ids() == {"a"}
        file.write(line[40:])
    assert store.read_done_ids() == {"a", "b"}


def test_refreshing_leaves_no_file_and_needs_no_records(tmp_path):
    store = Store.open(tmp_path)
    store.refresh()
    assert list(store.records_folder.iterdir()) == []


def test_reading_records_leaves_the_garbage_collector_as_it_was(tmp_path):
    store = filled(tmp_path, small("a"))
    assert gc.isenabled()
    store.read_records()
    assert gc.isenabled()
    gc.disable()
    try:
        store.read_records()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize(("number", "is_full_disk"), [("ENOSPC", True), ("EDQUOT", True), ("EIO", False)])
def test_a_full_disk_is_recognised_by_its_error(number, is_full_disk):
    assert is_full(OSError(getattr(errno, number), "")) is is_full_disk


def test_a_record_file_is_closed_once(tmp_path):
    writer = RecordWriter(tmp_path)
    number = writer._fd
    writer.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    # The number may belong to another file by now.
    with open(tmp_path / "other", "w") as other:
        writer.close()
        assert os.fstat(other.fileno())


def test_a_host_without_a_name_still_gets_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "")
    assert is_record_file(RecordWriter(tmp_path).path.name)
    monkeypatch.setattr(socket, "gethostname", lambda: "node/01 ü")
    assert RecordWriter(tmp_path).path.name.startswith("node_01__-")


def test_a_store_is_a_context_manager_that_closes_its_file(tmp_path):
    with Store.open(tmp_path) as store:
        store.append(small("a"))
        number = store._writer._fd
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_trial_files_are_named_by_trial_and_nothing_else(tmp_path):
    store = Store.open(tmp_path)
    assert store.get_trial_file("ab") == tmp_path / "trials" / "ab.json"
    with pytest.raises(ValueError, match="not a trial id"):
        store.get_trial_file("../ab")


@pytest.mark.parametrize("fmt", ["csv", "json"])
def test_an_export_counts_what_it_wrote(tmp_path, fmt):
    store = filled(tmp_path / "store", small("a"), small("b"))
    result = export_records(store, fmt, tmp_path / "out")
    assert (result.num_records, result.damage) == (2, ())


def test_a_line_as_long_as_allowed_is_written_and_read(tmp_path, monkeypatch):
    length = len(seal(small("a").to_json()))
    monkeypatch.setattr("corewise.store.store.MAX_LINE_BYTES", length)
    monkeypatch.setattr(sealed_lines, "MAX_LINE_BYTES", length)
    assert filled(tmp_path, small("a")).read_records().damage == ()


def test_shortened_mappings_answer_like_dictionaries():
    packed = PackedMapping.from_mapping({"x": 1, "y": "two"})
    assert ("x" in packed, "z" in packed) == (True, False)
    assert repr(packed) == "{'x': 1, 'y': 'two'}"
    assert list(packed.values()) == [1, "two"]


def test_texts_beyond_ascii_are_exported_as_they_are(tmp_path):
    store = filled(tmp_path / "store", small("a", reason="é", notes=("10", "ü")))
    export_records(store, "json", tmp_path / "out")
    assert "é" in (tmp_path / "out").read_text()
