"""Folders of ended processes are removed, those of living ones stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from corewise.owned_files import build_owned_prefix, remove_abandoned

KILLED = """
import os, signal, sys, tempfile
from corewise.owned_files import build_owned_prefix
folder = tempfile.mkdtemp(prefix=build_owned_prefix(sys.argv[1]))
open(os.path.join(folder, "A_00000_00000.tile"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def leave_folder(name: str) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, name], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize("purpose", ["trial", "primitives"])
def test_folders_of_killed_processes_are_removed_and_others_stay(purpose: str, folder: Path) -> None:
    leave_folder(f"corewise-{purpose}")
    [left] = folder.glob(f"corewise-{purpose}-*")
    in_use = Path(tempfile.mkdtemp(prefix=build_owned_prefix("corewise-trial")))
    # A folder of another host or another process namespace.
    foreign = folder / f"corewise-{purpose}-another0-1-1-abc"
    foreign.mkdir()
    (folder / "corewise-0").mkdir()
    assert remove_abandoned() == 1
    assert not left.exists()
    assert in_use.is_dir()
    assert foreign.is_dir()
    assert (folder / "corewise-0").is_dir()


def test_only_folders_of_that_name_are_removed(folder: Path) -> None:
    leave_folder(".building")
    assert remove_abandoned() == 0
    assert remove_abandoned(".building", folder) == 1
    assert list(folder.iterdir()) == []


def test_a_reused_process_id_does_not_protect_a_folder(folder: Path) -> None:
    own = Path(tempfile.mkdtemp(prefix=build_owned_prefix("corewise-trial")))
    parts = own.name.split("-")
    earlier = own.with_name("-".join([*parts[:4], str(int(parts[4]) - 1), parts[5]]))
    own.rename(earlier)
    assert parts[3] == str(os.getpid())
    assert remove_abandoned() == 1
    assert not earlier.exists()
