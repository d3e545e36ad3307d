"""The wheel of Corewise is complete and reproducible, from a checkout and from an installation."""

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from corewise import __version__
from corewise.bundle.corewise_wheel import PACKAGE, write_own_wheel
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
        "from corewise.bundle.corewise_wheel import PACKAGE, write_own_wheel\n"
        "assert PACKAGE.parent == pathlib.Path('site').resolve()\n"
        "write_own_wheel(pathlib.Path('again'))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    again = tmp_path / "again" / ours.name
    with zipfile.ZipFile(ours) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert first.read(f"{INFO}/METADATA") == second.read(f"{INFO}/METADATA")
    assert "numpy>=1.26" in read_wheel(again).requires
