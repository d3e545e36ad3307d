"""The page on changing widths: its examples run, its tables and figures are those of the code."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from corewise.dataflow import adaptive, choose, spinning
from corewise.dataflow.malleable import PLANNING_S, malleable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "malleable.md"


def test_the_examples_run(tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join(examples).replace("malleable(model, x)", "malleable(model, x, planning_s=0.2)")
    env = {**os.environ, "COREWISE_NATIVE": "0", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "operators in" in done.stdout
    assert "traceEvents" in (tmp_path / "trace.json").read_text()


def test_the_options_are_those_of_the_code() -> None:
    shown = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    taken = [
        name for name, one in inspect.signature(malleable).parameters.items() if one.kind == one.KEYWORD_ONLY
    ]
    assert shown == taken


def test_the_figures_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"{PLANNING_S:g} s unless told" in text
    assert f"faster by {100 * choose.LEAST_GAIN:g} %" in text
    assert f"after {adaptive.CHECK_S:g} s" in text
    assert spinning.helping_command() in text


def test_the_variables_that_are_wanted_are_only_those_nobody_has_set() -> None:
    wanted = spinning.wanted_environment({})
    assert int(wanted["GOMP_SPINCOUNT"]) == 300_000
    assert (wanted["OMP_WAIT_POLICY"], wanted["MALLOC_MMAP_MAX_"]) == ("ACTIVE", "0")
    assert spinning.wanted_environment(wanted) == {}
    assert "GOMP_SPINCOUNT" not in spinning.wanted_environment({"OMP_WAIT_POLICY": "PASSIVE"})
    assert not any(name.startswith("MALLOC_") for name in spinning.wanted_environment({"LD_PRELOAD": "x.so"}))


def test_a_process_started_well_has_nothing_to_complain_of() -> None:
    assert spinning.complaint(spinning.wanted_environment({})) == ""
    assert "sleep at once" in spinning.complaint({"GOMP_SPINCOUNT": "5000"})
    assert spinning.complaint({"OMP_WAIT_POLICY": "passive"}) == ""
    assert "for milliseconds" in spinning.complaint({"OMP_WAIT_POLICY": "active"}), "for ever, indeed"
    assert spinning.helping_command() in spinning.complaint({})
    assert spinning.complaint({"GOMP_SPINCOUNT": "many"}) != ""
