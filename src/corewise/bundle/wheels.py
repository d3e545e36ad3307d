"""Reads the wheels of a folder and resolves their requirements on the target."""

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from corewise.bundle.target import OLD_TAGS, Target

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Wheel:
    """One wheel: its normalised name, version, path and requirements."""

    name: str
    version: str
    path: Path
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Closure:
    """The packages that some requirements need, and (requirement, requiring package) of missing ones."""

    reached: frozenset[str]
    missing: tuple[tuple[str, str], ...]


def read_wheels(folder: Path) -> dict[str, Wheel]:
    """Read the wheels of a folder, by normalised name."""
    wheels = (read_wheel(path) for path in sorted(folder.glob("*.whl")))
    return {wheel.name: wheel for wheel in wheels}


def read_wheel(path: Path) -> Wheel:
    """Read the metadata of a wheel."""
    from packaging.utils import canonicalize_name

    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
        headers = HeaderParser().parsestr(archive.read(names[0]).decode("utf-8"))
    requires = tuple(headers.get_all("Requires-Dist") or ())
    return Wheel(canonicalize_name(headers["Name"]), headers["Version"], path, requires)


def filter_applicable(requirements: Iterable[str], target: Target, extras: Iterable[str] = ()) -> list["Requirement"]:
    """Return the requirements that apply to the target, without their markers."""
    from packaging.requirements import Requirement

    environments = [{**target.marker_environment, "extra": extra} for extra in ("", *extras)]
    applicable = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            requirement.marker = None
            applicable.append(requirement)
    return applicable


def resolve_closure(
    roots: Iterable[str], wheels: Mapping[str, Wheel], target: Target, left_out: frozenset[str] = frozenset()
) -> Closure:
    """Resolve what the roots need on the target; packages in `left_out` are ignored.

    pip resolves for another Python or processor, but evaluates markers such as `python_version < "3.13"` for
    the interpreter that it runs in (pypa/pip 11664). Its result is therefore checked again here.
    """
    from packaging.utils import canonicalize_name

    missing: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(requirement, "corewise") for requirement in filter_applicable(roots, target)]
    while waiting:
        requirement, required_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in left_out:
            continue
        wheel = wheels.get(name)
        if wheel is None or not requirement.specifier.contains(wheel.version, prereleases=True):
            missing.setdefault(str(requirement), required_by)
            continue
        if (name, frozenset(requirement.extras)) not in seen:
            seen.add((name, frozenset(requirement.extras)))
            waiting += [(each, name) for each in filter_applicable(wheel.requires, target, requirement.extras)]
    return Closure(frozenset(name for name, _ in seen), tuple(missing.items()))


def find_needed_glibc(file_names: Iterable[str], target: Target) -> tuple[int, int]:
    """Find the oldest glibc that all these wheels run with; local builds (linux_…) may need the target's."""
    from packaging.utils import parse_wheel_filename

    newest = 0
    for file_name in file_names:
        platforms = [tag.platform for tag in parse_wheel_filename(file_name)[3]]
        newest = max(newest, min(_parse_glibc_minor(each, target) for each in platforms))
    return 2, newest


def _parse_glibc_minor(platform: str, target: Target) -> int:
    if platform == "any":
        return 0
    if match := re.match(r"manylinux_2_(\d+)_", platform):
        return int(match[1])
    old = {name: minor for minor, name in OLD_TAGS.items()}
    return old.get(platform.partition("_")[0], target.glibc[1])
