"""What the self-test asks of an installation is what that installation can do."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.bundle.own_wheel import write_own_wheel
from corewise.bundle.payload.install import version_of

LISTED = """
from pathlib import Path
from corewise.bundle.selftest import checks
print(*checks(Path(".")), sep="\\n")
"""


@pytest.mark.parametrize("worker_only", [True, False])
def test_no_report_is_asked_of_a_worker_only_install_that_sees_the_packages_of_others(
    tmp_path: Path, worker_only: bool
) -> None:
    wheel = write_own_wheel(tmp_path, worker_only=worker_only)
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    place = f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})"
    done = subprocess.run([sys.executable, "-c", place + LISTED], capture_output=True, text=True, check=True)
    assert "the records are exported as parquet" in done.stdout
    assert ("a report is written" in done.stdout) is not worker_only


def test_a_package_under_another_name_tells_its_version(need: Callable[[bool, str], None]) -> None:
    need(importlib.util.find_spec("yaml") is not None, "PyYAML")
    assert version_of("yaml") == __import__("yaml").__version__
    assert version_of("no_such_package") is None
