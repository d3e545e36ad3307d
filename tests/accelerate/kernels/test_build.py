"""Building the C++ executor: once, whole or not at all, and with a reason where it cannot be."""

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")

from corewise.accelerate.kernels import build
from corewise.launch.worker_archive import build_worker

FAKE_COMPILER = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
sleep 0.1
while [ $# -gt 1 ]; do [ "$1" = "-o" ] && echo whole > "$2"; shift; done
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache, and no compiler except the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(build.CACHE_VARIABLE)
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CXX", str(script(folder / "c++", FAKE_COMPILER)))
    monkeypatch.setenv("PATH", os.defpath)
    return folder / "calls"


def test_without_a_compiler_the_reason_says_what_is_missing(folder: Path) -> None:
    with pytest.raises(build.NativeBuildError, match=r"no C\+\+ compiler found"):
        build._build_if_missing()


def test_a_failing_compiler_is_quoted_and_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = script(folder / "c++", "#!/bin/sh\necho 'executor.cpp:1: fatal error: no such header' >&2\nexit 1\n")
    monkeypatch.setenv("CXX", str(failing))
    with pytest.raises(build.NativeBuildError, match="fatal error: no such header"):
        build._build_if_missing()
    assert not list((folder / "cache").rglob("*.so")) + list((folder / "cache").rglob(".building-*"))


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "cache").write_text("a file, not a folder")
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(folder / "temporary"))
    assert build._find_build_folder().is_relative_to(folder / "temporary")


def test_without_a_home_no_folder_is_made_where_one_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.chdir(folder)
    # Stands for a user without home directory.
    monkeypatch.setattr(build.os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(build.tempfile, "gettempdir", lambda: str(folder / "temporary"))
    assert build._find_build_folder().is_relative_to(folder / "temporary")
    assert not (folder / "~").exists()


def test_what_is_switched_off_is_neither_built_nor_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setattr(build, "_load_or_rebuild", lambda: pytest.fail("it was built"))
    monkeypatch.setenv("COREWISE_NATIVE", "0")
    with pytest.raises(build.NativeBuildError, match="COREWISE_NATIVE=0"):
        build.load_native_module()


def test_two_builders_at_once_compile_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_compiler(folder, monkeypatch)
    paths: list[Path] = []
    builders = [threading.Thread(target=lambda: paths.append(build._build_if_missing())) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert paths[0] == paths[1]
    assert paths[0].read_text() == "whole\n"
    assert len(calls.read_text().splitlines()) == len(build.UNITS) + 1


def test_what_was_built_is_used_where_there_is_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(folder, monkeypatch)
    built = build._build_if_missing()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(folder / "bin"))
    assert build._build_if_missing() == built


def test_another_compiler_or_torch_causes_a_rebuild(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(folder, monkeypatch)
    first = build._build_if_missing()
    script(folder / "c++", FAKE_COMPILER + "# another version\n")
    assert build._build_if_missing() != first
    monkeypatch.setattr(build.torch, "__version__", "9.9.9")
    assert build._build_if_missing().parent != first.parent


def test_a_file_that_is_no_module_is_a_reason_not_a_crash(folder: Path) -> None:
    broken = folder / "corewise_native-0.so"
    broken.write_text("whole")
    with pytest.raises(build.NativeBuildError, match="cannot be loaded"):
        build._load(broken)


def test_the_sources_are_found_within_a_zip_archive(tmp_path: Path) -> None:
    archive = build_worker(tmp_path)
    names = zipfile.ZipFile(archive).namelist()
    assert {f"corewise/accelerate/kernels/{name}" for name in (*build.UNITS, *build.HEADERS)} <= set(names)
    code = "from corewise.accelerate.kernels import build as b; print(b.__file__, len(b.read_sources()['lanes.h']))"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    lines = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    ).stdout.split()
    assert lines[0].startswith(str(archive))
    assert int(lines[1]) == len(build.read_sources()["lanes.h"])
