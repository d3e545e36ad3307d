"""Folders of ended runs are removed, those of living ones stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.measured.worker.run_folder import PREFIX, clear_abandoned, create_trial_folder

KILLED = """
import os, signal
from corewise.measured.worker.run_folder import create_trial_folder
open(os.path.join(create_trial_folder(), "A_00000_00000.tile"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_folders_of_killed_processes_are_removed_and_others_stay(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert ended.returncode == -signal.SIGKILL
    [left] = folder.glob(f"{PREFIX}-*")
    in_use = Path(create_trial_folder())
    # A folder of another host or another process namespace.
    foreign = folder / f"{PREFIX}-another0-1-1-abc"
    foreign.mkdir()
    (folder / "corewise-0").mkdir()
    assert clear_abandoned() == 1
    assert not left.exists()
    assert in_use.is_dir()
    assert foreign.is_dir()
    assert (folder / "corewise-0").is_dir()


def test_a_reused_process_id_does_not_protect_a_folder(folder: Path) -> None:
    own = Path(create_trial_folder())
    parts = own.name.split("-")
    earlier = own.with_name("-".join([*parts[:4], str(int(parts[4]) - 1), parts[5]]))
    own.rename(earlier)
    assert parts[3] == str(os.getpid())
    assert clear_abandoned() == 1
    assert not earlier.exists()
