"""The measured side as one file in the user's cache: built once, held while in use, pruned when old."""

import fcntl
import os
import time
from pathlib import Path

import pytest

from corewise.launcher.measured_side import MEASURED_FILES, NUM_KEPT, UNUSED_S, build_worker

LONG_AGO = 2 * UNUSED_S


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in (*MEASURED_FILES, "worker/main.py"):
        (tmp_path / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "package" / name).write_text("")
    return tmp_path / "package"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with more old workers than are kept, worker-0 the oldest."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for number in range(NUM_KEPT + 3):
        aged(folder / f"worker-{number}.pyz", LONG_AGO - number)
    return folder


def aged(path: Path, age_s: float) -> Path:
    path.touch()
    used_at = time.time() - age_s
    os.utime(path, (used_at, used_at))
    return path


def workers(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("worker-*.pyz")}


def changed(package: Path) -> Path:
    (package / "worker" / "main.py").write_text(f"# {time.monotonic_ns()}\n")
    return package


def test_a_new_worker_takes_the_place_of_the_oldest(package: Path, cache: Path) -> None:
    made = build_worker(cache, package)
    newest = {f"worker-{number}.pyz" for number in range(4, NUM_KEPT + 3)}
    assert workers(cache) == {made.name, *newest}


def test_workers_of_the_last_day_stay_however_many_they_are(package: Path, cache: Path) -> None:
    for path in cache.iterdir():
        aged(path, UNUSED_S / 2)
    build_worker(cache, package)
    assert len(workers(cache)) == NUM_KEPT + 4


def test_a_worker_in_use_stays_however_old_it_is(package: Path, cache: Path) -> None:
    used = build_worker(cache, package)  # this very process holds it from now on
    with (cache / "worker-other.pyz").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        for number in range(NUM_KEPT):
            aged(cache / f"worker-{number}.pyz", LONG_AGO)
        for path in (used, cache / "worker-other.pyz"):
            aged(path, 2 * LONG_AGO)
        build_worker(cache, changed(package))
        assert {used.name, "worker-other.pyz"} <= workers(cache)
        assert len(workers(cache)) == NUM_KEPT + 2


def test_a_worker_that_is_used_again_is_no_longer_old(package: Path, cache: Path) -> None:
    made = build_worker(cache, package)
    before = made.read_bytes()
    aged(made, LONG_AGO)
    assert build_worker(cache, package) == made
    assert time.time() - made.stat().st_mtime < UNUSED_S
    assert made.read_bytes() == before


def test_a_worker_that_someone_removed_is_built_again(package: Path, cache: Path) -> None:
    made = build_worker(cache, package)
    made.unlink()
    assert build_worker(cache, package) == made
    assert made.exists()
