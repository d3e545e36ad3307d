import json
import os
import subprocess
import sys

import typer
from tests.cli.sample_stores import hybrid_records, made_record, scaling_records, unmeasured_records, write_store
from typer.testing import CliRunner

from corewise.cli.status import status
from corewise.store.leases import acquire_lease

app = typer.Typer()
app.command()(status)


def run(store, *arguments):
    result = CliRunner().invoke(app, ["--store", str(store.path), *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_trials_are_counted_by_study_and_status(tmp_path):
    store = write_store(tmp_path / "store", *scaling_records(), *hybrid_records(), *unmeasured_records())
    state = json.loads(run(store, "--json"))
    assert (state["num_ok"], state["num_failed"], state["num_skipped"]) == (11, 1, 6)
    assert state["studies"]["hybrid"] == {"ok": 6, "failed": 0, "skipped": 0}
    assert state["last_finished_at"] == "2026-11-15T10:00:30.000Z"
    lines = [line.split() for line in run(store).splitlines()]
    assert ["thread-scaling", "5", "1", "6"] in lines
    assert ["all", "11", "1", "6"] in lines


def test_an_empty_store_is_said_to_be_empty(tmp_path):
    assert "no records yet" in run(write_store(tmp_path / "store"))


def test_work_folders_are_in_progress_while_their_lease_lives_and_interrupted_after(tmp_path):
    store = write_store(tmp_path / "store", made_record("done1234"))
    for trial_id in ("done1234", "going123", "broken12"):
        store.get_work_dir(trial_id).mkdir(parents=True)
    with acquire_lease(store.leases_folder, "trial-going123", {"study": "hybrid"}):
        state = json.loads(run(store, "--json"))
        assert (state["in_progress"], state["interrupted"]) == (["going123"], ["broken12"])
        text = run(store)
        assert "in progress 1: going123" in text
        assert "interrupted 1: broken12; the next `corewise run` resumes them" in text
        assert f"in use by process {os.getpid()} on" in text
        assert "study hybrid" in text
    assert json.loads(run(store, "--json"))["num_interrupted"] == 2


def test_a_holder_that_died_is_said_to_be_gone(tmp_path):
    store = write_store(tmp_path / "store")
    code = "import sys; from pathlib import Path; from corewise.store.leases import acquire_lease; "
    code += "acquire_lease(Path(sys.argv[1]), 'host-a')"
    subprocess.run([sys.executable, "-c", code, str(store.leases_folder)], check=True)
    (holder,) = json.loads(run(store, "--json"))["holders"]
    assert (holder["lease"], holder["alive"]) == ("host-a", False)
    assert "has ended; the next `corewise run` takes over" in " ".join(run(store).split())


def test_damage_is_listed_by_file_line_and_reason(tmp_path):
    store = write_store(tmp_path / "store", made_record("a"), made_record("b"))
    (path,) = store.records_folder.iterdir()
    raw = path.read_bytes()
    path.write_bytes(raw[:40] + b"?" + raw[41:] + b'{"schema":1,"tri')
    damage = json.loads(run(store, "--json"))["damage"]
    assert [(d["file"], d["line"]) for d in damage] == [(str(path), 1), (str(path), 3)]
    text = run(store)
    assert "damage in 2 places; all other records were read" in text
    assert "checksum does not match" in text


def test_trials_recorded_twice_are_mentioned(tmp_path):
    store = write_store(tmp_path / "store", made_record("a"), made_record("a"))
    assert json.loads(run(store, "--json"))["num_duplicates"] == 1
    assert "1 trial was recorded more than once; only one record of each counts" in run(store)


def test_looking_leaves_the_store_as_it_was(tmp_path):
    store = write_store(tmp_path / "store", made_record("a"))
    acquire_lease(store.leases_folder, "run")
    before = sorted(store.path.rglob("*"))
    run(store)
    assert sorted(store.path.rglob("*")) == before
