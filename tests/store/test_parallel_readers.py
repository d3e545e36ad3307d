import os
import subprocess
import sys

import pytest
from made_records import made_record
from record_extractors import PARENT, dying_elsewhere, failing, reader, trial_id, without_params

from corewise.store import file_parts, parallel_readers
from corewise.store.brief_records import extract_brief
from corewise.store.parallel_readers import read_in_parallel
from corewise.store.sealed_lines import seal
from corewise.store.store import Store


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A store that counts as large, with a damage and a trial recorded twice."""
    monkeypatch.setattr(parallel_readers, "MIN_BYTES", 1)
    monkeypatch.setattr(file_parts.split_files, "__defaults__", (20_000,))
    store = Store.open(tmp_path / "store")
    store.records_folder.mkdir()
    for name in "ab":
        records = [made_record(f"{name}{i}", 0.5 + i / 100) for i in range(60)]
        lines = [seal(each.to_json()) for each in (*records, made_record("twice"))]
        lines[25] = lines[25][:-30] + b"\n"
        (store.records_folder / f"{name}.jsonl").write_bytes(b"".join(lines))
    return store


def needs_two_cpus(need):
    need(len(os.sched_getaffinity(0)) > 1, "two CPUs")


def test_other_processes_read_the_parts_and_this_one_does_not(large, need):
    needs_two_cpus(need)
    readers = {found.value for found in large.read_contents(reader).records}
    assert len(readers) > 1
    assert os.getpid() not in readers


def test_what_several_processes_read_is_what_one_reads(large, monkeypatch):
    many = large.read_records(extract_brief)
    monkeypatch.setattr(parallel_readers, "MIN_BYTES", 10**12)
    one = large.read_records(extract_brief)
    assert many == one
    assert len(one.records) == 119
    assert [(d.file.name, d.line) for d in one.damage] == [("a.jsonl", 26), ("b.jsonl", 26)]
    assert len(one.duplicates) == 1


def test_a_process_that_dies_costs_no_record(large, monkeypatch):
    monkeypatch.setenv(PARENT, str(os.getpid()))
    contents = large.read_contents(dying_elsewhere)
    assert sorted(each.value for each in contents.records) == sorted(
        each.value for each in large.read_contents(trial_id).records
    )


def test_what_goes_wrong_in_another_process_goes_wrong_here_alone(large, capfd):
    with pytest.raises(ZeroDivisionError):
        large.read_contents(failing)
    assert capfd.readouterr().err == ""


def test_a_function_that_has_no_name_elsewhere_is_applied_here(large):
    assert {found.value for found in large.read_contents(lambda record, entry: os.getpid()).records} == {os.getpid()}
    assert len(large.read_records(lambda record: without_params(record)).records) == 119


def test_where_no_process_can_be_started_the_parts_are_read_here(large, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert {found.value for found in large.read_contents(reader).records} == {os.getpid()}


def test_small_stores_are_read_by_this_process_alone(large, monkeypatch):
    monkeypatch.setattr(parallel_readers, "MIN_BYTES", 10**9)
    assert {found.value for found in large.read_contents(reader).records} == {os.getpid()}


def test_no_parts_give_nothing():
    assert read_in_parallel([], trial_id) == []


SCRIPT = """
import sys
from pathlib import Path
from corewise.store import parallel_readers
from corewise.store.store import Store
parallel_readers.MIN_BYTES = 1
print("started")
def shorten(record):
    return record
print(len(Store.open(sys.argv[1], create=False).read_records(shorten).records))
from corewise.store.brief_records import extract_brief
print(len(Store.open(sys.argv[1], create=False).read_records(extract_brief).records))
"""


def test_a_script_without_a_main_guard_can_read_a_large_store(large, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = [sys.executable, str(script), str(large.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("started\n119\n119\n", "")
