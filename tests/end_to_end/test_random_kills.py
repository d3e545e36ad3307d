"""A short version of benchmarks/random_kills.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from random_kills import kill_randomly


@pytest.mark.slow
def test_ten_random_kills_lose_double_and_leave_nothing(tmp_path: Path) -> None:
    findings = kill_randomly(10, seed=4, root=tmp_path)
    assert findings.violations == []
    assert len(findings.kills) >= 10
