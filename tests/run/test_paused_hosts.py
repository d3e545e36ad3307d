"""Two hosts share a store while one is paused, with wrong clocks and late visibility."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "paused_hosts.py"


@pytest.mark.slow
def test_a_paused_host_loses_and_doubles_nothing(need: Callable[[bool, str], None]) -> None:
    need(os.getuid() == 0, "root, to give processes host names")
    command = [sys.executable, str(SCRIPT), "--episodes", "12", "--seed", "7"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "12 episodes, 12 of them clean" in result.stdout
