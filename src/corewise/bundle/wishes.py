"""Which packages a bundle holds: our own requirements, less what a node does not need, plus frameworks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from corewise import __version__
from corewise.bundle.contents import LEFT_OUT_OF_WORKER
from corewise.bundle.own_wheel import NAME, own_metadata
from corewise.bundle.target import Target
from corewise.bundle.wheels import applicable
from corewise.spec.errors import UserError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Wishes:
    """The requirements to fetch, the packages left out, and what pip installs from the bundle in the end."""

    roots: tuple[str, ...]
    left_out: frozenset[str]
    install: tuple[str, ...]


def make_wishes(target: Target, frameworks: Sequence[str], worker_only: bool) -> Wishes:
    """What a bundle for the target is to hold."""
    if worker_only and frameworks:
        raise UserError("--worker-only brings no framework: the node's own is used; leave out --with")
    headers = HeaderParser().parsestr(own_metadata()["METADATA"].decode("utf-8"))
    _require_python(headers, target)
    requires = headers.get_all("Requires-Dist") or []
    left_out = LEFT_OUT_OF_WORKER if worker_only else frozenset[str]()
    own = [r for r in applicable(requires, target) if _normal(r.name) not in left_out]
    extras = {
        _normal(extra): _of_extra(requires, target, extra)
        for extra in headers.get_all("Provides-Extra") or []
    }
    added = [each for word in frameworks for each in _framework(word, extras)]
    return Wishes(
        roots=tuple(map(str, [*own, *added])),
        left_out=left_out,
        install=(f"{NAME}=={__version__}", *dict.fromkeys(map(str, added))),
    )


def _require_python(headers: "Message[str, str]", target: Target) -> None:
    from packaging.specifiers import SpecifierSet

    needed = headers["Requires-Python"]
    if not SpecifierSet(needed).contains(f"{target.python}.0"):
        raise UserError(
            f"Corewise needs Python {needed}, not {target.python}. Trials can run under an older one (from "
            "3.9 on): install Corewise for a newer Python there, and name the older in the study (`python:`)"
        )


def _of_extra(requires: Iterable[str], target: Target, extra: str) -> list["Requirement"]:
    without = set(map(str, applicable(requires, target)))
    return [each for each in applicable(requires, target, [extra]) if str(each) not in without]


def _framework(word: str, extras: Mapping[str, Sequence["Requirement"]]) -> list["Requirement"]:
    """What `--with torch` or `--with torch==2.13.0` adds: that, and what its extra has beside it."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(word)
    except InvalidRequirement as problem:
        raise UserError(
            f"--with {word!r} is not a requirement: write it like torch or torch==2.13.0"
        ) from problem
    name = _normal(wanted.name)
    ours = extras.get(name, ())
    if ours and not wanted.specifier and wanted.url is None:
        return list(ours)
    beside = [each for each in ours if not f"{_normal(each.name)}-".startswith(f"{name}-")]
    return [wanted, *beside]


def _normal(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
