"""Every system call on a store fails in turn: nothing is lost or doubled, and the next run completes."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fault_injection.py"


def inject_faults(folder: Path, *arguments: str) -> dict[str, dict[str, object]]:
    out = folder / "figures.json"
    command = [sys.executable, str(SCRIPT), *arguments, "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    programs: dict[str, dict[str, object]] = json.loads(out.read_text())["programs"]
    return programs


@pytest.fixture(autouse=True)
def _compiler(need: Callable[[bool, str], None]) -> None:
    need(shutil.which("cc") is not None, "a C compiler")


def test_faults_of_the_store_lose_and_double_nothing(tmp_path: Path) -> None:
    figures = inject_faults(tmp_path, "--programs", "store", "--limit", "60")["store"]
    assert figures["num_faults"] == 60
    assert {"completed", "reported", "killed"} >= set(figures["outcomes"])  # type: ignore[call-overload]
    # The library is under the store: all these calls are counted.
    counts = figures["calls"]
    assert isinstance(counts, dict)
    for call in ("open", "write", "fsync", "rename", "link", "unlink", "readdir"):
        assert counts[call] > 0, call


@pytest.mark.slow
def test_all_faults_of_the_store_and_some_of_a_whole_run_lose_and_double_nothing(tmp_path: Path) -> None:
    figures = inject_faults(tmp_path, "--programs", "store")["store"]
    assert figures["num_faults"] == figures["num_possible"]
    assert inject_faults(tmp_path, "--programs", "run", "--limit", "60")["run"]["num_faults"] == 60
