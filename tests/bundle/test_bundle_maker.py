"""A bundle is complete, small and reproducible, and never overwrites other files."""

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
from bundling import THIS, make_offline_environment

from corewise.bundle.bundle_maker import BundleResult
from corewise.bundle.contents import LEFT_OUT_OF_WORKER
from corewise.bundle.payload.install import find_changed_files
from corewise.bundle.target import parse_target
from corewise.errors import UserError
from corewise.study.built_in_studies import list_studies

MAX_WORKER_BYTES = 10_000_000
MakeWorker = Callable[..., BundleResult]


def build_bundle_command(wheelhouse: Path, folder: Path) -> list[str]:
    command = [sys.executable, "-m", "corewise", "bundle", "--worker-only", "-o", str(folder)]
    return [*command, "--find-links", str(wheelhouse)]


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_worker_only_bundle_has_at_most_10_mb(worker: BundleResult) -> None:
    files = [path for path in worker.folder.rglob("*") if path.is_file()]
    assert worker.size_bytes == sum(path.stat().st_size for path in files)
    assert worker.size_bytes <= MAX_WORKER_BYTES


def test_bundle_json_describes_the_bundle(worker: BundleResult) -> None:
    result = json.loads((worker.folder / "bundle.json").read_text())
    assert (result["python"], result["machine"], result["worker_only"]) == (THIS.python, THIS.machine, True)
    assert result["made_at"] == "2023-11-14T22:13:20+00:00"
    assert {packed["file"] for packed in result["packages"]} == {p.name for p in (worker.folder / "wheels").iterdir()}
    assert {packed["name"] for packed in result["packages"]} & LEFT_OUT_OF_WORKER == set()


def test_the_bundle_holds_the_studies_and_a_short_readme(worker: BundleResult) -> None:
    studies = worker.folder / "studies"
    found = {path.relative_to(studies).with_suffix("").as_posix() for path in studies.rglob("*.yaml")}
    assert found == {study.name for study in list_studies()}
    readme = (worker.folder / "README.txt").read_text()
    assert len(readme.splitlines()) == 10
    assert "@" not in readme


def test_sha256sum_accepts_the_bundle(worker: BundleResult, need: Callable[[bool, str], None]) -> None:
    need(shutil.which("sha256sum") is not None, "sha256sum (coreutils)")
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=worker.folder, capture_output=True)
    assert done.returncode == 0
    assert find_changed_files(worker.folder) == []


@pytest.mark.slow
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
    with pytest.raises(UserError, match=r"a bundle that was changed \(studies/own.yaml is not part of it\)"):
        make_worker(copied)
    assert (copied / "studies/own.yaml").read_text() == "mine"
    make_worker(copied, force=True)
    assert find_changed_files(copied) == []
    assert list_names(tmp_path) == ["bundle"]


def test_a_folder_that_is_no_bundle_is_never_replaced(make_worker: MakeWorker, tmp_path: Path) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.tex").write_text("precious")
    with pytest.raises(UserError, match="is not a bundle"):
        make_worker(folder, force=True)
    assert list_names(folder) == ["chapter.tex"]


def test_an_empty_folder_is_filled(make_worker: MakeWorker, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert find_changed_files(make_worker(tmp_path / "empty").folder) == []


@pytest.mark.slow
def test_an_interrupted_bundle_leaves_nothing(tmp_path: Path) -> None:
    """Interrupt pip while it waits for an index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        command = [*build_bundle_command(tmp_path, tmp_path / "out" / "bundle"), "--index-url", url]
        env = {**make_offline_environment(), "PIP_NO_INDEX": "0"}
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()
        with connection:
            assert any(name.endswith(".part") for name in list_names(tmp_path / "out"))
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "corewise: stopped. The incomplete bundle was removed.\n")
    assert list_names(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1m", "5m"])
def test_a_full_disk_is_reported_and_leaves_nothing(
    size: str, wheelhouse: Path, tmp_path: Path, need: Callable[[bool, str], None]
) -> None:
    """With 1 MB pip runs out of space, with 5 MB the bundle does."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs "$0"'
    possible = subprocess.run(["unshare", "-rm", "sh", "-c", mount, str(disk)], capture_output=True).returncode == 0
    need(possible, "a private file system (unshare -rm, mount)")
    script = f'{mount} && {{ "$@"; echo "ended with $?"; ls -A "$0"; }}'
    command = ["unshare", "-rm", "sh", "-c", script, str(disk), *build_bundle_command(wheelhouse, disk / "bundle")]
    done = subprocess.run(command, env=make_offline_environment(), capture_output=True, text=True, timeout=300)
    assert done.stdout == "ended with 2\n"
    assert "the disk is full" in done.stderr


def test_leftovers_of_a_killed_run_are_reported(
    make_worker: MakeWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".bundle.999.part").mkdir()
    make_worker(tmp_path / "bundle")
    assert "an interrupted run left" in capsys.readouterr().err


def test_a_python_that_is_too_old_is_reported(make_worker: MakeWorker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs Python >=3.11, not 3.8.*python:"):
        make_worker(tmp_path / "bundle", target=parse_target("3.8", None, None))


def test_a_python_without_wheels_is_reported_with_the_package(make_worker: MakeWorker, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no wheel of \S+ for Python 3.99"):
        make_worker(tmp_path / "bundle", target=parse_target("3.99", None, None))
    assert list_names(tmp_path) == []


def test_the_command_prints_its_result_as_json(wheelhouse: Path, tmp_path: Path) -> None:
    command = [*build_bundle_command(wheelhouse, tmp_path / "bundle"), "--json", "--archive"]
    done = subprocess.run(command, env=make_offline_environment(), capture_output=True, text=True, timeout=300)
    result = json.loads(done.stdout)
    assert result["folder"] == str(tmp_path / "bundle")
    assert Path(result["archive"]).stat().st_size > result["size_bytes"]
    assert result["worker_only"] is True


def test_file_modes_follow_the_umask(worker: BundleResult) -> None:
    umask = os.umask(0)
    os.umask(umask)
    modes = {path.stat().st_mode & 0o777 for path in (worker.folder / "wheels").iterdir()}
    assert modes == {0o666 & ~umask}
