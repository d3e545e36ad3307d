"""Corewise itself as a wheel, without a build tool and without a network: from a checkout or as installed."""

import base64
import hashlib
import io
import lzma
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from corewise import __version__
from corewise.bundle.contents import is_for_home
from corewise.spec.errors import UserError

NAME = "corewise"
PACKAGE = Path(__file__).resolve().parent.parent
FIXED_TIME = (2020, 1, 1, 0, 0, 0)  # so that equal sources give equal bytes
WHEEL = "Wheel-Version: 1.0\nGenerator: corewise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_LEFT_BY_AN_INSTALLER = {"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json"}


def write_own_wheel(folder: Path, package: Path = PACKAGE, *, worker_only: bool = False) -> Path:
    """The path of a wheel of this very Corewise, written to the folder; or of what a worker needs."""
    info = f"{NAME}-{__version__}.dist-info"
    paths = [path for path in _package_files(package) if not (worker_only and is_for_home(path))]
    members = {f"{NAME}/{path}": (package / path).read_bytes() for path in paths}
    about = {"WHEEL": WHEEL.encode(), **own_metadata(package)}
    members |= {f"{info}/{name}": about[name] for name in sorted(about)}
    members[f"{info}/RECORD"] = _record(members, f"{info}/RECORD")
    target = folder / f"{NAME}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, FIXED_TIME)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return target


def write_packed_wheel(wheel: Path) -> Path:
    """The path of an xz file of the wheel, which it replaces: its files compress better as one stream.

    The table of contents is left out: its hashes do not compress, and whoever unpacks it can make them.
    """
    stored = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(stored, "w") as archive:
        for member in source.infolist():
            if member.filename.endswith(".dist-info/RECORD"):
                continue
            data = source.read(member)
            member.compress_type = zipfile.ZIP_STORED
            archive.writestr(member, data)
    packed = wheel.with_name(f"{wheel.name}.xz")
    packed.write_bytes(lzma.compress(stored.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    wheel.unlink()
    return packed


def own_metadata(package: Path = PACKAGE) -> dict[str, bytes]:
    """The files about the package: of a checkout from its pyproject.toml, else those that were installed."""
    checkout = package.parent.parent
    project = _project(checkout / "pyproject.toml")
    return _of_project(project, checkout) if project else _as_installed()


def _package_files(package: Path) -> list[Path]:
    found = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    return sorted(
        path
        for path in found
        if "__pycache__" not in path.parts and not any(part.startswith(".") for part in path.parts)
    )


def _project(path: Path) -> Mapping[str, Any] | None:
    """The [project] table when this is our own pyproject.toml."""
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return project if project.get("name") == NAME else None


def _of_project(project: Mapping[str, Any], checkout: Path) -> dict[str, bytes]:
    lines = ["Metadata-Version: 2.4", f"Name: {NAME}", f"Version: {__version__}"]
    lines += [f"Summary: {project['description']}", f"License-Expression: {project['license']}"]
    lines += [f"License-File: {name}" for name in project["license-files"]]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {each}" for each in project["dependencies"]]
    for extra, requirements in project.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {each}; extra == "{extra}"' for each in requirements]
    scripts = "".join(f"{name} = {entry}\n" for name, entry in project["scripts"].items())
    licences = {f"licenses/{name}": (checkout / name).read_bytes() for name in project["license-files"]}
    metadata = {"METADATA": "\n".join(lines) + "\n", "entry_points.txt": f"[console_scripts]\n{scripts}"}
    return {**{name: text.encode() for name, text in metadata.items()}, **licences}


def _as_installed() -> dict[str, bytes]:
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        installed = None
    if installed is None or installed.version != __version__ or not installed.files:
        raise UserError(
            f"{PACKAGE} was not installed by pip, so its requirements are not known: "
            "run `pip install .` in Corewise's source folder, then `corewise bundle` again"
        )
    about = {}
    for path in installed.files:
        if path.parts[0].endswith(".dist-info") and path.name not in _LEFT_BY_AN_INSTALLER:
            about["/".join(path.parts[1:])] = Path(str(path.locate())).read_bytes()
    return about


def _record(members: Mapping[str, bytes], own_name: str) -> bytes:
    """The wheel's table of contents (PEP 376): name, hash, size; itself without a hash."""
    lines = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()
