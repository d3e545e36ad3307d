"""Mirrors of the user's folder, and the guard of the files that they share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.tuning.scripts import working_folder
from corewise.tuning.scripts.working_folder import MAX_COPIED_BYTES, FileGuard, scan_folder


def write(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    user = tmp_path / "user"
    write(user / "train.py")
    write(user / "data" / "small.txt")
    write(user / "data" / "large.bin", MAX_COPIED_BYTES + 1)
    write(user / ".git" / "config")
    write(user / "env" / "pyvenv.cfg")
    write(user / "corewise-store" / "records")
    (user / "dangling").symlink_to("nowhere")
    return user


def test_a_mirror_has_copies_of_small_files_and_links_to_large_ones(folder: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    tree = scan_folder(folder, folder / "corewise-store")
    mirror = tree.build_mirror(mirror)
    assert sorted(os.listdir(mirror)) == [".git", "data", "env", "train.py"]
    assert not (mirror / "data").is_symlink()
    assert not (mirror / "data" / "small.txt").is_symlink()
    assert (mirror / "data" / "large.bin").readlink() == folder / "data" / "large.bin"
    assert (mirror / "env").is_symlink()
    # Hidden folders and environments are no data.
    assert tree.visible_shared == []


def test_a_folder_with_many_files_is_linked_as_a_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working_folder, "MAX_FOLDER_FILES", 5)
    for number in range(6):
        write(folder / "images" / "train" / f"{number}.png")
    tree = scan_folder(folder, folder / "corewise-store")
    assert tree.visible_shared == [Path("images")]
    assert Path("user/data") in tree.folders


def test_neighbours_of_the_folder_are_found_from_it(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "data" / "input.txt")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    start = scan_folder(folder, folder / "corewise-store").build_mirror(mirror)
    assert (start / "../data/input.txt").read_text() == "x"
    (start / "../data/input.txt").write_text("private")
    assert (tmp_path / "data" / "input.txt").read_text() == "x"


def test_a_guarded_file_is_not_written(folder: Path) -> None:
    path = folder / "data" / "large.bin"
    guard = FileGuard([path])
    guard.require_unchanged()
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(path)!r}, 'w')"])

    def wait_for_writer() -> None:
        while writer.poll() is None:
            guard.require_unchanged()

    try:
        with pytest.raises(UserError, match="--workdir"):
            wait_for_writer()
    finally:
        writer.kill()
        writer.wait()
        guard.close()
    assert path.stat().st_size == MAX_COPIED_BYTES + 1
    path.write_text("free again")


def test_a_change_of_a_file_without_a_lease_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_folder, "MAX_GUARDED", 0)
    path = folder / "data" / "large.bin"
    guard = FileGuard([path])
    guard.require_unwritten()
    path.write_text("changed")
    with pytest.raises(UserError, match="has changed"):
        guard.require_unwritten()
