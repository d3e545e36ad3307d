"""A bundle is whole, small, the same each time, and never made over other people's files."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from bundling import THIS, offline

from corewise.bundle.contents import LEFT_OUT_OF_WORKER
from corewise.bundle.make import Made
from corewise.bundle.payload.install import changed_files
from corewise.bundle.target import make_target
from corewise.spec.errors import UserError
from corewise.spec.shipped import list_studies

MOST_BYTES_OF_A_WORKER = 5_000_000
MakeWorker = Callable[..., Made]


def bundle_words(wheelhouse: Path, folder: Path) -> list[str]:
    words = [sys.executable, "-m", "corewise", "bundle", "--worker-only", "-o", str(folder)]
    return [*words, "--find-links", str(wheelhouse)]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_worker_only_bundle_has_at_most_5_mb(worker: Made) -> None:
    files = [path for path in worker.folder.rglob("*") if path.is_file()]
    assert worker.size_bytes == sum(path.stat().st_size for path in files)
    assert worker.size_bytes <= MOST_BYTES_OF_A_WORKER


def test_the_bundle_says_what_it_is(worker: Made) -> None:
    told = json.loads((worker.folder / "bundle.json").read_text())
    assert (told["python"], told["machine"], told["worker_only"]) == (THIS.python, THIS.machine, True)
    assert told["made_at"] == "2023-11-14T22:13:20+00:00"
    assert {packed["file"] for packed in told["packages"]} == {
        p.name for p in (worker.folder / "wheels").iterdir()
    }
    assert {packed["name"] for packed in told["packages"]} & LEFT_OUT_OF_WORKER == set()


def test_the_bundle_holds_the_studies_and_a_short_readme(worker: Made) -> None:
    studies = worker.folder / "studies"
    found = {path.relative_to(studies).with_suffix("").as_posix() for path in studies.rglob("*.yaml")}
    assert found == {study.name for study in list_studies()}
    readme = (worker.folder / "README.txt").read_text()
    assert len(readme.splitlines()) == 10
    assert "@" not in readme


def test_sha256sum_finds_the_bundle_whole(worker: Made, need: Callable[[bool, str], None]) -> None:
    need(shutil.which("sha256sum") is not None, "sha256sum (coreutils)")
    done = subprocess.run(
        ["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=worker.folder, capture_output=True
    )
    assert done.returncode == 0
    assert changed_files(worker.folder) == []


def test_the_same_wheels_give_the_same_bundle_and_archive(make_worker: MakeWorker, tmp_path: Path) -> None:
    first, second = [make_worker(tmp_path / name / "bundle", archive=True) for name in ("a", "b")]
    assert (first.folder / "SHA256SUMS").read_bytes() == (second.folder / "SHA256SUMS").read_bytes()
    assert first.archive is not None
    assert second.archive is not None
    assert first.archive.read_bytes() == second.archive.read_bytes()
    with tarfile.open(first.archive) as archive:
        names = {name.removeprefix("bundle/") for name in archive.getnames()}
    assert {"install.sh", "wheels", "SHA256SUMS"} <= names


def test_an_unchanged_bundle_is_replaced_and_a_changed_one_only_by_force(
    make_worker: MakeWorker, copied: Path, tmp_path: Path
) -> None:
    make_worker(copied)
    (copied / "studies/own.yaml").write_text("mine")
    with pytest.raises(UserError, match=r"changes of yours \(studies/own.yaml is not part of it\)"):
        make_worker(copied)
    assert (copied / "studies/own.yaml").read_text() == "mine"
    make_worker(copied, force=True)
    assert changed_files(copied) == []
    assert leftovers(tmp_path) == ["bundle"]


def test_a_folder_that_is_no_bundle_is_left_alone_even_by_force(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("precious")
    with pytest.raises(UserError, match="is not a bundle"):
        make_worker(folder, force=True)
    assert leftovers(folder) == ["chapter.tex"]


def test_an_empty_folder_is_filled(make_worker: MakeWorker, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert changed_files(make_worker(tmp_path / "empty").folder) == []


def test_an_interrupted_bundle_leaves_nothing(tmp_path: Path) -> None:
    """The index accepts and never answers: the signal comes while pip waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        words = [*bundle_words(tmp_path, tmp_path / "out" / "bundle"), "--index-url", url]
        env = {**offline(), "PIP_NO_INDEX": "0"}
        process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            assert any(name.endswith(".part") for name in leftovers(tmp_path / "out"))
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "corewise: stopped; nothing was left behind.\n")
    assert leftovers(tmp_path / "out") == []


@pytest.mark.parametrize("size", ["1m", "5m"])
def test_a_full_disk_is_told_and_leaves_nothing(
    size: str, wheelhouse: Path, tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    """With 1 MB pip runs out of space, with 5 MB the bundle does."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0"'
    possible = (
        subprocess.run(["unshare", "-rm", "sh", "-c", mount, str(disk)], capture_output=True).returncode == 0
    )
    need(possible, "a file system of one's own (unshare -rm, mount)")
    script = f'{mount} && {{ "$@"; echo "ended with $?"; ls -A "$0"; }}'
    words = ["unshare", "-rm", "sh", "-c", script, str(disk), *bundle_words(wheelhouse, disk / "bundle")]
    done = subprocess.run(words, env=offline(), capture_output=True, text=True, timeout=300)
    assert done.stdout == "ended with 2\n"
    assert "the disk is full" in done.stderr


def test_what_a_killed_run_left_is_told(
    make_worker: MakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".bundle.999.part").mkdir()
    make_worker(tmp_path / "bundle")
    assert "left by an interrupted run" in capsys.readouterr().err


def test_a_python_too_old_for_corewise_is_told(make_worker: MakeWorker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs Python >=3.11, not 3.8.*python:"):
        make_worker(tmp_path / "bundle", target=make_target("3.8", None, None))


def test_a_python_without_wheels_is_told_with_the_package(make_worker: MakeWorker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no wheel of \S+ for Python 3.99"):
        make_worker(tmp_path / "bundle", target=make_target("3.99", None, None))
    assert leftovers(tmp_path) == []


def test_the_command_tells_in_json_what_it_made(wheelhouse: Path, tmp_path: Path) -> None:
    words = [*bundle_words(wheelhouse, tmp_path / "bundle"), "--json", "--archive"]
    done = subprocess.run(words, env=offline(), capture_output=True, text=True, timeout=300)
    told = json.loads(done.stdout)
    assert told["folder"] == str(tmp_path / "bundle")
    assert Path(told["archive"]).stat().st_size > told["size_bytes"]
    assert told["worker_only"] is True


def test_files_are_as_readable_as_the_umask_says(worker: Made) -> None:
    umask = os.umask(0)
    os.umask(umask)
    modes = {path.stat().st_mode & 0o777 for path in (worker.folder / "wheels").iterdir()}
    assert modes == {0o666 & ~umask}
