"""Building the C++ executor: once, whole or not at all, and with a reason where it cannot be."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from corewise.accelerate.kernels import build
from corewise.cache_folder import SHARED_BUILDS_VARIABLE
from corewise.launch.worker_archive import build_worker

Need = Callable[[bool, str], None]
FAKE_COMPILER = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
sleep 0.1
while [ $# -gt 1 ]; do [ "$1" = "-o" ] && echo whole > "$2"; shift; done
"""


@pytest.fixture
def folder(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache, and no compiler except the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(SHARED_BUILDS_VARIABLE)
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
    fake_compiler(folder, monkeypatch)
    assert build._build_if_missing().is_relative_to(folder / "temporary")


def test_without_a_home_no_folder_is_made_where_one_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.chdir(folder)
    # Stands for a user without home directory.
    monkeypatch.setattr(build.os.path, "expanduser", lambda path: path)
    fake_compiler(folder, monkeypatch)
    assert build._build_if_missing().is_relative_to(folder / "temporary")
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


@pytest.fixture
def planted(tmp_path: Path, need: Need) -> bytes:
    """Provide a library that leaves a mark when it is loaded."""
    compiler = shutil.which("cc", path=os.defpath)
    need(compiler is not None, "a C compiler")
    source = tmp_path / "planted.c"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) void run(void) {{ open("{tmp_path}/mark", O_CREAT | O_WRONLY, 0600); }}\n'
    )
    library = tmp_path / "planted.so"
    command = [str(compiler), "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, env={"PATH": os.defpath}, check=True)
    return library.read_bytes()


@pytest.mark.parametrize("place", ["cache/corewise", "shared"])
@pytest.mark.parametrize("gift", ["the file", "the folder", "all folders", "a link"])
def test_a_planted_library_is_neither_loaded_nor_in_the_way(
    folder: Path,
    planted: bytes,
    place: str,
    gift: str,
    temporary: Path,
    give_away: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_compiler(folder, monkeypatch)
    if place == "shared":
        monkeypatch.setenv(SHARED_BUILDS_VARIABLE, str(folder / place))
    library = build._build_if_missing()
    assert library.is_relative_to(folder / place)
    library.write_bytes(planted)
    if gift == "a link":
        library.rename(folder / "elsewhere.so")
        library.symlink_to(give_away(folder / "elsewhere.so"))
    else:
        give_away(library)
    if gift == "the folder":
        give_away(library.parent)
    if gift == "all folders":
        for each in (library.parent, library.parent.parent, library.parent.parent.parent):
            give_away(each)
    # The fake compiler produces no module.
    with pytest.raises(build.NativeBuildError, match="cannot be loaded"):
        build._load_or_rebuild()
    assert not (folder / "mark").exists()
    assert "belongs to uid 65534" in caplog.text
    rebuilt = build._build_if_missing()
    assert rebuilt.read_text() == "whole\n"
    assert rebuilt.stat().st_uid == os.geteuid()


def test_a_library_that_everyone_can_write_to_is_built_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(folder, monkeypatch)
    library = build._build_if_missing()
    library.write_text("changed by someone")
    library.chmod(0o777)
    assert build._build_if_missing().read_text() == "whole\n"
    assert library.stat().st_mode & 0o022 == 0


def test_one_build_of_root_serves_users_who_cannot_write_to_its_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, need: Need
) -> None:
    need(os.geteuid() == 0, "only root can act as several users")
    # Other users cannot enter the folders of pytest.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        shared, temporary = Path(name) / "shared", Path(name) / "temporary"
        for each, mode in ((Path(name), 0o755), (shared, 0o755), (temporary, 0o1777)):
            each.mkdir(exist_ok=True)
            each.chmod(mode)
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        monkeypatch.setenv(SHARED_BUILDS_VARIABLE, str(shared))
        fake_compiler(folder, monkeypatch)
        library, key = build._build_if_missing(), build._compute_build_key()
        other_compiler = script(shared / "other-c++", FAKE_COMPILER)
        assert call_as_user(4711, lambda: str(build._find_build(str(other_compiler), key, None))) == str(library)
        # Users may replace neither the library nor its folder.
        library.parent.chmod(0o777)
        assert call_as_user(4711, lambda: str(build._find_build(str(other_compiler), key, None))) == "None"


def call_as_user(uid: int, function: Callable[[], str]) -> str:
    """Return what a function returns in a process of another user without a home folder."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ.pop("XDG_CACHE_HOME", None)
            os.environ["HOME"] = "/nonexistent"
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(write_end, function().encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text
