"""Folders of runs: those of the dead go, those of the living stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.worker.trial_folder import PREFIX, clear_abandoned, make_trial_folder

KILLED = """
import os, signal
from corewise.worker.trial_folder import make_trial_folder
open(os.path.join(make_trial_folder(), "A_00000_00000.tile"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert ended.returncode == -signal.SIGKILL
    [left] = folder.glob(f"{PREFIX}-*")
    in_use = Path(make_trial_folder())
    foreign = folder / f"{PREFIX}-another0-1-1-abc"  # of another host, or other numbers of processes
    foreign.mkdir()
    (folder / "corewise-0").mkdir()
    assert clear_abandoned() == 1
    assert not left.exists()
    assert in_use.is_dir()
    assert foreign.is_dir()
    assert (folder / "corewise-0").is_dir()


def test_a_number_that_another_process_has_now_does_not_keep_a_folder(folder: Path) -> None:
    own = Path(make_trial_folder())
    words = own.name.split("-")
    earlier = own.with_name("-".join([*words[:4], str(int(words[4]) - 1), words[5]]))
    own.rename(earlier)
    assert words[3] == str(os.getpid())
    assert clear_abandoned() == 1
    assert not earlier.exists()
