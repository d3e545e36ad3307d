"""The worker archive in the user's cache: built once, kept while in use, removed when old."""

import fcntl
import os
import time
from pathlib import Path

import pytest

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
