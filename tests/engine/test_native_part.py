"""The C++ part is built before a search, once for each interpreter and torch, and only where it is needed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.engine.machine_view import Interpreter
from corewise.engine.native_part import build_once
from corewise.launcher.local import build_command
from corewise.launcher.measured_side import build_worker
from corewise.spec.cache_folder import default_cache
from corewise.tuner.knobs import has_native
from corewise.tuner.space import Knob, Space


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """One that notes what it is asked to run."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$3" >> {tmp_path / "asked"}\nexit 1\n')
    script.chmod(0o755)
    return Interpreter((str(script),), "3.12.0", str(tmp_path), {"torch": "2.13.0"})


def asked(tmp_path: Path) -> list[str]:
    file = tmp_path / "asked"
    return file.read_text().splitlines() if file.exists() else []


def test_it_is_built_once_even_where_that_fails(tmp_path: Path, interpreter: Interpreter) -> None:
    told: list[str] = []
    for _ in range(3):
        build_once(interpreter, Path("worker-1.pyz"), lambda: told.append("now"), tmp_path / "cache")
    assert asked(tmp_path) == ["worker-1.pyz"]
    assert told == ["now"]


def test_another_torch_or_version_has_its_own(tmp_path: Path, interpreter: Interpreter) -> None:
    newer = Interpreter(interpreter.words, interpreter.version, interpreter.prefix, {"torch": "2.14.0"})
    for each, worker in ((interpreter, "a.pyz"), (newer, "a.pyz"), (interpreter, "b.pyz")):
        build_once(each, Path(worker), lambda: None, tmp_path / "cache")
    assert asked(tmp_path) == ["a.pyz", "a.pyz", "b.pyz"]


def test_an_interpreter_that_cannot_be_started_stops_nothing(tmp_path: Path) -> None:
    gone = Interpreter((str(tmp_path / "gone"),), "3.12.0", str(tmp_path), {})
    told: list[str] = []
    build_once(gone, Path("worker.pyz"), lambda: told.append("now"), tmp_path / "cache")
    assert told == ["now"]


def test_a_cache_that_may_not_be_looked_into_stops_nothing(tmp_path: Path, interpreter: Interpreter) -> None:
    build_once(interpreter, Path("a.pyz"), lambda: None, tmp_path / ("long" * 100))
    assert asked(tmp_path) == ["a.pyz"]


def test_where_it_is_switched_off_nothing_is_built_or_noted(
    tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    for value in ("0", "1"):
        monkeypatch.setenv("COREWISE_NATIVE", value)
        build_once(interpreter, Path("a.pyz"), lambda: told.append("now"), tmp_path / "cache")
        assert len(told) == len(asked(tmp_path)) == int(value)


def test_without_a_home_there_is_a_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert default_cache().is_absolute()


def test_the_measured_side_builds_it_from_its_one_file(
    need: Callable[[bool, str], None], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from corewise.dataflow.native_executor import missing

    need(not missing(), f"the C++ executor: {missing()}")
    done = subprocess.run(
        build_command((sys.executable,), build_worker(tmp_path)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).suffix == ".so"


def space(base: dict[str, str], *choices: dict[str, str]) -> Space:
    return Space(base, (Knob("execution", choices),) if choices else ())


def test_what_is_built_is_wanted_by_prepared_weights_and_changing_widths_alone() -> None:
    eager = {"execution": "eager"}
    assert has_native(space({}, eager, {"execution": "eager", "freezing": "full"}))
    assert has_native(space({}, eager, {"execution": "malleable"}))
    assert has_native(space({"execution": "malleable"}, {"allocator": "default"}))
    assert not has_native(space({}, eager, {"execution": "script", "freezing": "full"}))
    assert not has_native(space({"device": "cuda"}, eager, {"execution": "eager", "freezing": "full"}))
    assert not has_native(space({}))
