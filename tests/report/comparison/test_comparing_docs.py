"""What docs/comparing.md shows is what the verb prints."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from corewise.cli.compare import FAIL_ON
from corewise.stats.occasion_comparison import OCCASION_MARGIN

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs/comparing.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the store that the document compares."""
    made = tmp_path_factory.mktemp("document")
    shutil.copytree(ROOT / "benchmarks/data/xeon-16-cores/store", made / "store")
    return made


def compared(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "corewise", "compare", "store", "--by", "batch=4,16", *options]
    # A pipe has no width either.
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout


def keys(first: str) -> set[str]:
    """The names in the first column of the table that is headed so."""
    rows = DOCUMENT.partition(f"| {first} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_output_shown_is_that_of_the_verb(folder):
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    [shown] = [text for language, text in blocks if not language]
    printed = compared(folder).splitlines()
    assert [line for line in shown.splitlines() if line.rstrip() not in [each.rstrip() for each in printed]] == []


def test_every_key_of_the_json_is_explained(folder):
    exported = json.loads(compared(folder, "--json"))
    assert keys("key") == set(exported)
    assert keys("key of a trial") == set(exported["trials"][0])
    for name in ("summary", "rule", "a"):
        [row] = [row for row in DOCUMENT.splitlines() if row.startswith(f"| `{name}`")]
        assert set(exported[name]) <= set(re.findall(r"`(\w+)`", row)), name


def test_what_a_gate_can_fail_on_is_explained():
    assert keys("word") == set(FAIL_ON)


def test_the_margin_is_that_of_the_code():
    assert f"margin of {100 * OCCASION_MARGIN:g} %" in DOCUMENT
