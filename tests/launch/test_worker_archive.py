"""The worker archive in the user's cache: built once, kept while in use, removed when old."""

import fcntl
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.launch.worker_archive import MAX_CACHED_WORKERS, MEASURED_FILES, UNUSED_S, build_worker

LONG_AGO = 2 * UNUSED_S


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in (*MEASURED_FILES, "measured/worker/main.py"):
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text("")
    return tmp_path / "package"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Create a cache with more old workers than its limit, worker-0 the oldest."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for number in range(MAX_CACHED_WORKERS + 3):
        set_age(folder / f"worker-{number}.pyz", LONG_AGO - number)
    return folder


def set_age(path: Path, age_s: float) -> Path:
    path.touch()
    used_at = time.time() - age_s
    os.utime(path, (used_at, used_at))
    return path


def list_workers(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("worker-*.pyz")}


def change_source(package: Path) -> Path:
    (package / "measured" / "worker" / "main.py").write_text(f"# {time.monotonic_ns()}\n")
    return package


def test_a_new_worker_replaces_the_oldest(package: Path, cache: Path) -> None:
    made = build_worker(cache, package)
    newest = {f"worker-{number}.pyz" for number in range(4, MAX_CACHED_WORKERS + 3)}
    assert list_workers(cache) == {made.name, *newest}


def test_workers_used_within_a_day_are_never_removed(package: Path, cache: Path) -> None:
    for path in cache.iterdir():
        set_age(path, UNUSED_S / 2)
    build_worker(cache, package)
    assert len(list_workers(cache)) == MAX_CACHED_WORKERS + 4


def test_a_worker_in_use_is_never_removed(package: Path, cache: Path) -> None:
    # This process locks the worker from now on.
    used = build_worker(cache, package)
    with (cache / "worker-other.pyz").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        for number in range(MAX_CACHED_WORKERS):
            set_age(cache / f"worker-{number}.pyz", LONG_AGO)
        for path in (used, cache / "worker-other.pyz"):
            set_age(path, 2 * LONG_AGO)
        build_worker(cache, change_source(package))
        assert {used.name, "worker-other.pyz"} <= list_workers(cache)
        assert len(list_workers(cache)) == MAX_CACHED_WORKERS + 2


def test_using_a_worker_refreshes_its_age(package: Path, cache: Path) -> None:
    made = build_worker(cache, package)
    before = made.read_bytes()
    set_age(made, LONG_AGO)
    assert build_worker(cache, package) == made
    assert time.time() - made.stat().st_mtime < UNUSED_S
    assert made.read_bytes() == before


def test_a_removed_worker_is_built_again(package: Path, cache: Path) -> None:
    made = build_worker(cache, package)
    made.unlink()
    assert build_worker(cache, package) == made
    assert made.exists()


@pytest.fixture
def planted(tmp_path: Path, give_away: Callable[..., Path]) -> bytes:
    """Provide an archive of another user that leaves a mark when it runs."""
    archive = tmp_path / "planted.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", f"open({str(tmp_path / 'mark')!r}, 'w').close()")
    return archive.read_bytes()


def test_a_planted_worker_in_the_temporary_folder_is_not_run(
    tmp_path: Path, temporary: Path, planted: bytes, give_away: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = build_worker(tmp_path / "elsewhere").name
    folder = temporary / f"corewise-{os.getuid()}"
    folder.mkdir()
    (folder / name).write_bytes(planted)
    give_away(folder / name)
    give_away(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    command = [sys.executable, "-m", "corewise", "run", str(write_study(tmp_path)), "--store", str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert not (tmp_path / "mark").exists()
    assert done.returncode == 0, done.stderr
    assert "1 ok" in done.stdout
    [line] = [line for line in done.stderr.splitlines() if "is not used" in line]
    assert f"{tmp_path}/file/corewise cannot be created: Not a directory" in line


def test_a_planted_worker_in_the_cache_is_replaced_and_named(
    tmp_path: Path,
    temporary: Path,
    planted: bytes,
    give_away: Callable[..., Path],
    package: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = build_worker(tmp_path / "elsewhere", package)
    cache = temporary / "cache"
    cache.mkdir()
    (cache / made.name).write_bytes(planted)
    give_away(cache / made.name)
    worker = build_worker(cache, package)
    assert worker.read_bytes() == made.read_bytes()
    assert worker.stat().st_uid == os.geteuid()
    assert f"{worker} is not used: {worker} belongs to uid 65534" in caplog.text


def test_a_worker_in_a_folder_of_someone_else_is_refused(
    tmp_path: Path, give_away: Callable[..., Path], package: Path
) -> None:
    (tmp_path / "cache").mkdir()
    give_away(tmp_path / "cache")
    with pytest.raises(UserError, match="cache belongs to uid 65534"):
        build_worker(tmp_path / "cache", package)


def write_study(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(
        "question: Does it run?\nworkload: matmul\nmode: infer\nruntime: numpy\n"
        "fixed: {threads: 1, batch: 1, args.size: 16}\n"
        "protocol: {preset: quick, min_runs: 2, max_runs: 2, min_samples: 3, min_sample_s: 0.01, max_warmup_s: 1}\n"
    )
    return path
