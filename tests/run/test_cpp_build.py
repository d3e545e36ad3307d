"""The C++ part is built once per interpreter and torch version, and only where it is needed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.cache_folder import find_cache_folder
from corewise.launch.worker_archive import build_worker
from corewise.launch.worker_commands import build_compile_command
from corewise.run.cpp_build import build_once
from corewise.run.machine_view import Interpreter
from corewise.tuning.search.knobs import has_native
from corewise.tuning.search.setting_space import Knob, Space


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """Create an interpreter that writes its arguments to a file."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$3" >> {tmp_path / "asked"}\nexit 1\n')
    script.chmod(0o755)
    return Interpreter((str(script),), "3.12.0", str(tmp_path), {"torch": "2.13.0"})


def read_requests(tmp_path: Path) -> list[str]:
    file = tmp_path / "asked"
    return file.read_text().splitlines() if file.exists() else []


def test_it_is_built_once_even_if_the_build_fails(tmp_path: Path, interpreter: Interpreter) -> None:
    announced: list[str] = []
    for _ in range(3):
        build_once(interpreter, Path("worker-1.pyz"), lambda: announced.append("now"), tmp_path / "cache")
    assert read_requests(tmp_path) == ["worker-1.pyz"]
    assert announced == ["now"]


def test_another_torch_or_worker_is_built_separately(tmp_path: Path, interpreter: Interpreter) -> None:
    newer = Interpreter(interpreter.command, interpreter.version, interpreter.prefix, {"torch": "2.14.0"})
    for each, worker in ((interpreter, "a.pyz"), (newer, "a.pyz"), (interpreter, "b.pyz")):
        build_once(each, Path(worker), lambda: None, tmp_path / "cache")
    assert read_requests(tmp_path) == ["a.pyz", "a.pyz", "b.pyz"]


def test_a_build_that_exceeds_its_time_limit_is_ended_and_tried_again(tmp_path: Path, interpreter: Interpreter) -> None:
    script = Path(interpreter.command[0])
    script.write_text(script.read_text().replace("exit 1", "exec sleep 600"))
    for _ in range(2):
        assert not build_once(interpreter, Path("a.pyz"), lambda: None, tmp_path / "cache", limit_s=2.0)
    assert read_requests(tmp_path) == ["a.pyz", "a.pyz"]
    script.write_text(script.read_text().replace("exec sleep 600", "exit 0"))
    assert build_once(interpreter, Path("a.pyz"), lambda: None, tmp_path / "cache", limit_s=60.0)


def test_an_interpreter_that_cannot_start_is_ignored(tmp_path: Path) -> None:
    gone = Interpreter((str(tmp_path / "gone"),), "3.12.0", str(tmp_path), {})
    announced: list[str] = []
    build_once(gone, Path("worker.pyz"), lambda: announced.append("now"), tmp_path / "cache")
    assert announced == ["now"]


def test_an_unreadable_cache_is_ignored(tmp_path: Path, interpreter: Interpreter) -> None:
    build_once(interpreter, Path("a.pyz"), lambda: None, tmp_path / ("long" * 100))
    assert read_requests(tmp_path) == ["a.pyz"]


def test_nothing_is_built_when_it_is_disabled(
    tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []
    for value in ("0", "1"):
        monkeypatch.setenv("COREWISE_NATIVE", value)
        build_once(interpreter, Path("a.pyz"), lambda: announced.append("now"), tmp_path / "cache")
        assert len(announced) == len(read_requests(tmp_path)) == int(value)


def test_there_is_a_cache_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert find_cache_folder().is_absolute()


def test_the_worker_archive_builds_it(need: Callable[[bool, str], None], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from corewise.accelerate.malleable.execute.cpp_executor import explain_missing_native

    need(not explain_missing_native(), f"the C++ executor: {explain_missing_native()}")
    done = subprocess.run(
        build_compile_command((sys.executable,), build_worker(tmp_path)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).suffix == ".so"


def space(base: dict[str, str], *choices: dict[str, str]) -> Space:
    return Space(base, (Knob("execution", choices),) if choices else ())


def test_only_full_freezing_and_malleable_execution_need_it() -> None:
    eager = {"execution": "eager"}
    assert has_native(space({}, eager, {"execution": "eager", "freezing": "full"}))
    assert has_native(space({}, eager, {"execution": "malleable"}))
    assert has_native(space({"execution": "malleable"}, {"allocator": "default"}))
    assert not has_native(space({}, eager, {"execution": "script", "freezing": "full"}))
    assert not has_native(space({"device": "cuda"}, eager, {"execution": "eager", "freezing": "full"}))
    assert not has_native(space({}))


def test_the_builder_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    worker = build_worker(tmp_path / "cache")
    for name in ("tempfile", "pkgutil", "sysconfig"):
        (tmp_path / f"{name}.py").write_text("open('mark', 'w').close()\n")
    done = subprocess.run(
        build_compile_command((sys.executable,), worker),
        cwd=tmp_path,
        env={**os.environ, "COREWISE_NATIVE": "0"},
        capture_output=True,
        text=True,
    )
    assert "COREWISE_NATIVE=0 disables it" in done.stderr
    assert not (tmp_path / "mark").exists()


def test_a_refused_folder_of_shared_builds_is_named_before_the_silent_build(
    tmp_path: Path,
    temporary: Path,
    interpreter: Interpreter,
    give_away: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("COREWISE_NATIVE_CACHE", str(give_away(temporary)))
    build_once(interpreter, Path("a.pyz"), lambda: None, tmp_path / "cache")
    assert f"COREWISE_NATIVE_CACHE is not used: {temporary} belongs to uid 65534" in caplog.text
