"""Writes a wheel of Corewise itself, from a checkout or an installation, without build tool or network."""

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from corewise import __version__
from corewise.errors import UserError

NAME = "corewise"
PACKAGE = Path(__file__).resolve().parent.parent
# A fixed time stamp, so equal sources give equal bytes.
FIXED_TIME = (2020, 1, 1, 0, 0, 0)
WHEEL = "Wheel-Version: 1.0\nGenerator: corewise\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_INSTALLER_FILES = {"RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json"}


def write_own_wheel(folder: Path, package: Path = PACKAGE) -> Path:
    """Write a wheel of this Corewise to the folder and return its path."""
    info = f"{NAME}-{__version__}.dist-info"
    members = {f"{NAME}/{path}": (package / path).read_bytes() for path in _list_package_files(package)}
    about = {"WHEEL": WHEEL.encode(), **read_own_metadata(package)}
    members |= {f"{info}/{name}": about[name] for name in sorted(about)}
    members[f"{info}/RECORD"] = _build_record(members, f"{info}/RECORD")
    target = folder / f"{NAME}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, FIXED_TIME)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return target


def read_own_metadata(package: Path = PACKAGE) -> dict[str, bytes]:
    """Read the metadata files, from pyproject.toml of a checkout or else from the installation."""
    checkout = package.parent.parent
    project = _read_project(checkout / "pyproject.toml")
    return _build_metadata(project, checkout) if project else _read_installed_metadata()


def _list_package_files(package: Path) -> list[Path]:
    files = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    return sorted(
        path
        for path in files
        if "__pycache__" not in path.parts and not any(part.startswith(".") for part in path.parts)
    )


def _read_project(path: Path) -> Mapping[str, Any] | None:
    """Read the [project] table if this is the pyproject.toml of Corewise."""
    try:
        project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return project if project.get("name") == NAME else None


def _build_metadata(project: Mapping[str, Any], checkout: Path) -> dict[str, bytes]:
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


def _read_installed_metadata() -> dict[str, bytes]:
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        installed = None
    if installed is None or installed.version != __version__ or not installed.files:
        raise UserError(
            f"{PACKAGE} was not installed by pip, so its requirements are unknown: "
            "run `pip install .` in Corewise's source folder, then `corewise bundle` again"
        )
    about = {}
    for path in installed.files:
        if path.parts[0].endswith(".dist-info") and path.name not in _INSTALLER_FILES:
            about["/".join(path.parts[1:])] = Path(str(path.locate())).read_bytes()
    return about


def _build_record(members: Mapping[str, bytes], own_name: str) -> bytes:
    """Build the RECORD file of the wheel (PEP 376): name, hash and size; its own entry has no hash."""
    lines = []
    for name, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own_name},,\n"]).encode()
