"""Selects the packages of a bundle: Corewise's requirements that a node needs, and frameworks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from corewise import __version__
from corewise.bundle.contents import LEFT_OUT_OF_WORKER
from corewise.bundle.corewise_wheel import NAME, read_own_metadata
from corewise.bundle.target import Target
from corewise.bundle.wheels import filter_applicable
from corewise.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class BundleRequirements:
    """The requirements to fetch, the packages to leave out, and what pip installs from the bundle."""

    roots: tuple[str, ...]
    left_out: frozenset[str]
    install: tuple[str, ...]


def resolve_requirements(target: Target, frameworks: Sequence[str], worker_only: bool) -> BundleRequirements:
    """Select the packages of a bundle for the target."""
    if worker_only and frameworks:
        raise UserError("--worker-only includes no framework: the node's framework is used; leave out --with")
    headers = HeaderParser().parsestr(read_own_metadata()["METADATA"].decode("utf-8"))
    _require_python(headers, target)
    requires = headers.get_all("Requires-Dist") or []
    left_out = LEFT_OUT_OF_WORKER if worker_only else frozenset[str]()
    own = [r for r in filter_applicable(requires, target) if _normalize_name(r.name) not in left_out]
    extras = {
        _normalize_name(extra): _list_extra_requirements(requires, target, extra)
        for extra in headers.get_all("Provides-Extra") or []
    }
    added = [each for text in frameworks for each in _expand_framework(text, extras)]
    return BundleRequirements(
        roots=tuple(map(str, [*own, *added])),
        left_out=left_out,
        install=(f"{NAME}=={__version__}", *dict.fromkeys(map(str, added))),
    )


def _require_python(headers: "Message[str, str]", target: Target) -> None:
    from packaging.specifiers import SpecifierSet

    needed = headers["Requires-Python"]
    if not SpecifierSet(needed).contains(f"{target.python}.0"):
        raise UserError(
            f"Corewise needs Python {needed}, not {target.python}. Trials can run under Python 3.9 or newer: "
            "install Corewise for a newer Python there, and name the older one in the study (`python:`)"
        )


def _list_extra_requirements(requires: Iterable[str], target: Target, extra: str) -> list["Requirement"]:
    without = set(map(str, filter_applicable(requires, target)))
    return [each for each in filter_applicable(requires, target, [extra]) if str(each) not in without]


def _expand_framework(text: str, extras: Mapping[str, Sequence["Requirement"]]) -> list["Requirement"]:
    """Expand `--with torch` or `--with torch==2.13.0` to the framework and the rest of its extra."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(text)
    except InvalidRequirement as problem:
        raise UserError(f"--with {text!r} is not a requirement: write it like torch or torch==2.13.0") from problem
    name = _normalize_name(wanted.name)
    ours = extras.get(name, ())
    if ours and not wanted.specifier and wanted.url is None:
        return list(ours)
    others = [each for each in ours if not f"{_normalize_name(each.name)}-".startswith(f"{name}-")]
    return [wanted, *others]


def _normalize_name(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
