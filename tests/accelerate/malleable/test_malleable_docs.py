"""The examples on the page about `corewise.malleable` run, and its figures match the code."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from corewise.accelerate.malleable import adaptive_width, idle_threads
from corewise.accelerate.malleable.module_wrapper import PLANNING_S, malleable
from corewise.accelerate.malleable.plan import candidate_choice

PAGE = Path(__file__).resolve().parents[3] / "docs" / "malleable.md"


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
        name
        for name, parameter in inspect.signature(malleable).parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY
    ]
    assert shown == taken


def test_the_figures_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text().split())
    assert f"{PLANNING_S:g} s by default" in text
    assert f"faster by {100 * candidate_choice.MIN_GAIN:g} %" in text
    assert f"after {adaptive_width.CHECK_INTERVAL_S:g} s" in text
    assert idle_threads.suggest_command() in text
    assert idle_threads.suggest_command(is_busy=True) in text


def test_variables_that_are_set_already_stay() -> None:
    wanted = idle_threads.build_thread_environment({})
    assert int(wanted["GOMP_SPINCOUNT"]) == 300_000
    assert (wanted["OMP_WAIT_POLICY"], wanted["MALLOC_MMAP_MAX_"]) == ("ACTIVE", "0")
    assert idle_threads.build_thread_environment(wanted) == {}
    assert "GOMP_SPINCOUNT" not in idle_threads.build_thread_environment({"OMP_WAIT_POLICY": "PASSIVE"})
    assert not any(name.startswith("MALLOC_") for name in idle_threads.build_thread_environment({"LD_PRELOAD": "x.so"}))


def test_a_process_with_these_variables_gets_no_warning() -> None:
    assert idle_threads.check_environment(idle_threads.build_thread_environment({})) == ""
    assert "sleep as soon as" in idle_threads.check_environment({"GOMP_SPINCOUNT": "5000"})
    assert idle_threads.check_environment({"OMP_WAIT_POLICY": "passive"}) == ""
    assert "for milliseconds" in idle_threads.check_environment({"OMP_WAIT_POLICY": "active"}), "for ever, indeed"
    assert idle_threads.suggest_command() in idle_threads.check_environment({})
    assert idle_threads.check_environment({"GOMP_SPINCOUNT": "many"}) != ""


def test_on_shared_cores_passive_waiting_is_advised() -> None:
    for environment in ({}, idle_threads.build_thread_environment({}), {"GOMP_SPINCOUNT": "5000"}):
        warning = idle_threads.check_environment(environment, is_busy=True)
        assert "other processes use these cores" in warning
        assert "--wait-policy passive" in warning
        assert "ACTIVE" not in warning
    assert idle_threads.check_environment({"OMP_WAIT_POLICY": "passive"}, is_busy=True) == ""
