"""The self-test checks only what an installation can do."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.bundle.corewise_wheel import write_own_wheel
from corewise.bundle.payload.install import find_version

LIST_CHECKS = """
from pathlib import Path
from corewise.bundle.selftest import list_checks
print(*list_checks(Path(".")), sep="\\n")
"""


@pytest.mark.parametrize("hidden", ["", "vl_convert"])
def test_a_report_is_checked_only_where_all_its_packages_are_installed(tmp_path: Path, hidden: str) -> None:
    with zipfile.ZipFile(write_own_wheel(tmp_path)) as packed:
        packed.extractall(tmp_path / "installed")
    place = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
    hide = "from importlib import util\nfind = util.find_spec\n"
    hide += f"util.find_spec = lambda name: find(name) if name != {hidden!r} else None\n"
    command = [sys.executable, "-c", place + hide + LIST_CHECKS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the records are exported as parquet" in done.stdout
    assert ("a report is written" in done.stdout) is not bool(hidden)


def test_the_version_of_a_package_with_another_name_is_found(need: Callable[[bool, str], None]) -> None:
    need(importlib.util.find_spec("yaml") is not None, "PyYAML")
    assert find_version("yaml") == __import__("yaml").__version__
    assert find_version("no_such_package") is None
