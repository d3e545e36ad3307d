"""On a worker-only install, verbs that need a large package name it and what to do; the others work."""

import subprocess
import sys
from pathlib import Path

import pytest

STORE = str(Path(__file__).parents[2] / "benchmarks/data/xeon-16-cores/store")
# Importing a module whose entry is None fails like importing one that is not installed.
PROGRAM = """
import sys
for name in ("scipy", "duckdb", "altair", "vl_convert"):
    sys.modules[name] = None
from corewise.cli.main import main
main()
"""


def run_without_packages(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "package"),
    [
        (["compare", STORE, STORE], "scipy"),
        (["report", "--store", STORE, "-o", "page.html"], "scipy"),
        (["export", "--store", STORE, "--format", "parquet", "-o", "records.parquet"], "duckdb"),
    ],
    ids=["compare", "report", "export"],
)
def test_a_verb_names_the_missing_package_and_what_to_do(
    arguments: list[str], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_without_packages(*arguments)
    assert done.returncode == 2
    assert f"this needs {package}, which is not installed here" in done.stderr
    assert "copy the store" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_results_are_shown_without_them() -> None:
    done = run_without_packages("show", "--store", STORE)
    assert (done.returncode, "best" in done.stdout) == (0, True), done.stderr
