import os
import shutil
import subprocess
import sys

import pytest

from corewise.errors import UserError
from corewise.store.atomic_files import write_atomically


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    with write_atomically(out) as path:
        path.write_text("new")
        assert out.read_text() == "old"
    assert out.read_text() == "new"
    assert os.listdir(tmp_path) == ["page.html"]


def test_whatever_fails_the_old_file_stays_and_nothing_is_left(tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old")
    with pytest.raises(TypeError), write_atomically(out) as path, open(path, "w") as file:
        print("half of the n", file=file) + 1
    assert (out.read_text(), os.listdir(tmp_path)) == ("old", ["page.html"])


def test_that_a_file_cannot_be_written_is_reported_with_its_name(tmp_path):
    out = tmp_path / "no" / "page.html"
    message = r"no/page.html cannot be written: No such file or directory; name another"
    with pytest.raises(UserError, match=message), write_atomically(out) as path:
        path.write_text("new")


def test_a_reader_that_went_away_is_no_mistake(tmp_path):
    with pytest.raises(BrokenPipeError), write_atomically(tmp_path / "out"):
        raise BrokenPipeError


EXPORT = """
import sys
from pathlib import Path
from corewise.errors import UserError
from corewise.study.record import Record
from corewise.store.export import export_records
from corewise.store.store import Store
disk, folder = Path(sys.argv[1]), Path(sys.argv[2])
store = Store.open(folder / "store")
for i in range(40):
    texts = {"reason": str(i) + "é" * 3000, "command": str(i) * 3000}
    store.append(Record(trial_id=f"t{i}", study="s", status="ok", **texts))
for fmt in ("json", "csv", "parquet"):
    out = disk / f"out.{fmt}"
    out.write_text("old")
    try:
        export_records(store, fmt, out)
    except UserError as error:
        print(error)
    assert out.read_text() == "old", fmt
    assert sorted(disk.iterdir()) == [out], fmt
    out.unlink()
"""


def test_an_export_onto_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, need):
    need(shutil.which("unshare") is not None, "unshare, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=16k none {disk} || exit 77; exec "$0" -c "$1" {disk} {tmp_path}'
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    done = subprocess.run(
        ["unshare", "--mount", *user, "sh", "-c", script, sys.executable, EXPORT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    mounted = done.returncode != 77 and not done.stderr.startswith("unshare:")
    need(mounted, f"the right to mount a small disk: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{disk}/out.{fmt} cannot be written: the disk is full; free space, or name another file with -o"
        for fmt in ("json", "csv", "parquet")
    ]
