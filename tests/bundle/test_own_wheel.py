"""Corewise packs itself: whole, the same each time, from a checkout and from where it was installed."""

import ast
import base64
import csv
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from corewise import __version__
from corewise.bundle.contents import is_for_home
from corewise.bundle.own_wheel import PACKAGE, write_own_wheel, write_packed_wheel
from corewise.bundle.payload import install
from corewise.bundle.payload.install import path_of_wheel
from corewise.bundle.wheels import read_wheel

INFO = f"corewise-{__version__}.dist-info"


def test_equal_sources_give_the_same_wheel(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first = write_own_wheel(tmp_path)
    assert first.read_bytes() == write_own_wheel(tmp_path / "again").read_bytes()


def test_the_wheel_holds_every_file_of_the_package_and_no_other(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_own_wheel(tmp_path)) as archive:
        names = set(archive.namelist())
    sources = {f"corewise/{p.relative_to(PACKAGE)}" for p in PACKAGE.rglob("*.py")}
    assert sources <= names
    assert {"corewise/py.typed", "corewise/studies/quick.yaml", "corewise/bundle/payload/install.sh"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert {f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")} <= names


def test_the_record_names_every_file_with_its_hash(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_own_wheel(tmp_path)) as archive:
        rows = list(csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == archive.namelist()
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={expected}", str(len(data)))


def test_an_installed_corewise_packs_itself_again(tmp_path: Path) -> None:
    ours = write_own_wheel(tmp_path)
    with zipfile.ZipFile(ours) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "again").mkdir()
    code = (
        "import sys, pathlib\n"
        "sys.path.insert(0, 'site')\n"
        "from corewise.bundle.own_wheel import PACKAGE, write_own_wheel\n"
        "assert PACKAGE.parent == pathlib.Path('site').resolve()\n"
        "write_own_wheel(pathlib.Path('again'))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    again = tmp_path / "again" / ours.name
    with zipfile.ZipFile(ours) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert first.read(f"{INFO}/METADATA") == second.read(f"{INFO}/METADATA")
    assert "numpy>=1.26" in read_wheel(again).requires


def at_import(path: Path) -> set[str]:
    """The modules of Corewise that a file needs when it is imported, not when it is used or checked."""
    found: set[str] = set()
    for node in ast.parse((PACKAGE / path).read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("corewise."):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_what_a_worker_keeps_imports_nothing_that_it_leaves_out(tmp_path: Path) -> None:
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    left_out = {".".join(("corewise", *path.with_suffix("").parts)) for path in paths if is_for_home(path)}
    assert {"corewise.report.page", "corewise.comparison.compute", "corewise.bundle.make"} <= left_out
    kept = [path for path in paths if not is_for_home(path)]
    assert {str(path): at_import(path) & left_out for path in kept if at_import(path) & left_out} == {}
    with zipfile.ZipFile(write_own_wheel(tmp_path, worker_only=True)) as archive:
        sources = {name for name in archive.namelist() if name.endswith(".py")}
    assert sources == {f"corewise/{path}" for path in kept}


def test_a_packed_wheel_is_the_same_wheel_again_when_unpacked(tmp_path: Path) -> None:
    ours = write_own_wheel(tmp_path, worker_only=True)
    with zipfile.ZipFile(ours) as archive:
        expected = {name: archive.read(name) for name in archive.namelist()}
    packed = write_packed_wheel(ours)
    assert not ours.exists()
    (tmp_path / "scratch").mkdir()
    with zipfile.ZipFile(path_of_wheel(packed, tmp_path / "scratch")) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == expected


def test_a_python_without_lzma_unpacks_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = write_packed_wheel(write_own_wheel(tmp_path))
    wanted = install.unpacked(packed)
    monkeypatch.setitem(sys.modules, "lzma", None)
    if shutil.which("xz"):
        assert install.unpacked(packed) == wanted
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(install.Refused, match="no lzma module"):
        install.unpacked(packed)
