"""Wheels in a folder, what they require on the target, and what of it is missing."""

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
    """One wheel: its normalised name, its version, what it requires."""

    name: str
    version: str
    path: Path
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Closure:
    """What is reached from some requirements, and what is missing on the way, each with who asked for it."""

    reached: frozenset[str]
    missing: tuple[tuple[str, str], ...]  # requirement, asked for by


def read_wheels(folder: Path) -> dict[str, Wheel]:
    """The wheels of a folder by normalised name."""
    found = (read_wheel(path) for path in sorted(folder.glob("*.whl")))
    return {wheel.name: wheel for wheel in found}


def read_wheel(path: Path) -> Wheel:
    """What a wheel says of itself."""
    from packaging.utils import canonicalize_name

    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
        headers = HeaderParser().parsestr(archive.read(names[0]).decode("utf-8"))
    requires = tuple(headers.get_all("Requires-Dist") or ())
    return Wheel(canonicalize_name(headers["Name"]), headers["Version"], path, requires)


def applicable(
    requirements: Iterable[str], target: Target, extras: Iterable[str] = ()
) -> list["Requirement"]:
    """The requirements that hold on the target, their markers then taken off."""
    from packaging.requirements import Requirement

    environments = [{**target.marker_environment, "extra": extra} for extra in ("", *extras)]
    kept = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            requirement.marker = None
            kept.append(requirement)
    return kept


def closure(
    roots: Iterable[str], wheels: Mapping[str, Wheel], target: Target, left_out: frozenset[str] = frozenset()
) -> Closure:
    """What the roots need on the target, through all wheels; those left out are neither asked for nor missed.

    pip resolves for another Python or processor but judges `; python_version < "3.13"` by the interpreter it
    runs in (pypa/pip 11664), so what it brought is gone through again.
    """
    from packaging.utils import canonicalize_name

    missing: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(requirement, "corewise") for requirement in applicable(roots, target)]
    while waiting:
        requirement, asked_by = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in left_out:
            continue
        wheel = wheels.get(name)
        if wheel is None or not requirement.specifier.contains(wheel.version, prereleases=True):
            missing.setdefault(str(requirement), asked_by)
            continue
        if (name, frozenset(requirement.extras)) not in seen:
            seen.add((name, frozenset(requirement.extras)))
            waiting += [(each, name) for each in applicable(wheel.requires, target, requirement.extras)]
    return Closure(frozenset(name for name, _ in seen), tuple(missing.items()))


def needed_glibc(file_names: Iterable[str], target: Target) -> tuple[int, int]:
    """The oldest glibc that all these wheels run with; own builds (linux_…) may need the target's."""
    from packaging.utils import parse_wheel_filename

    newest = 0
    for file_name in file_names:
        platforms = [tag.platform for tag in parse_wheel_filename(file_name)[3]]
        newest = max(newest, min(_glibc_minor(each, target) for each in platforms))
    return 2, newest


def _glibc_minor(platform: str, target: Target) -> int:
    if platform == "any":
        return 0
    if match := re.match(r"manylinux_2_(\d+)_", platform):
        return int(match[1])
    old = {name: minor for minor, name in OLD_TAGS.items()}
    return old.get(platform.partition("_")[0], target.glibc[1])
