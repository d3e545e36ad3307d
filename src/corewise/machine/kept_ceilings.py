"""Where measured ceilings are kept: a file for each class of machine, allocation and framework."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corewise.machine.ceilings import Ceilings
from corewise.machine.model import Allocation, Topology
from corewise.spec.errors import UserError
from corewise.spec.trial import write_json_aside

FOLDER = "ceilings"  # within the user's cache
PREFERRED = ("torch", "numpy")


@dataclass(frozen=True)
class Kept:
    """What is kept for this machine: the ceilings, and the files that could not be read, with why."""

    ceilings: Ceilings | None
    damage: tuple[str, ...] = ()


def allocation_shape(topology: Topology, allocation: Allocation) -> tuple[tuple[int, int], ...]:
    """Cores and CPUs per NUMA node, largest first: equal for equivalent grants on equal machines."""
    usable = topology.restricted(allocation.cpus)
    shape = []
    for node in usable.nodes:
        cpus = [cpu for cpu in usable.cpus if cpu.node == node]
        shape.append((len({cpu.core for cpu in cpus}), len(cpus)))
    return tuple(sorted(shape, reverse=True))


def kept_path(cache: Path, ceilings: Ceilings) -> Path:
    """The file of these ceilings."""
    start = _start(ceilings.host_class, ceilings.allocation)
    return cache / FOLDER / f"{start}{ceilings.runtime}-{_plain(ceilings.version)}.json"


def keep(cache: Path, ceilings: Ceilings, again: bool = False) -> Path:
    """The file that now holds the ceilings, written aside and renamed; UserError where it cannot be.

    Where the same were kept already, the higher figure stays; with `again` the old ones are dropped.
    """
    path = kept_path(cache, ceilings)
    if not again:
        before = _read(cache, path, ceilings.host_class, ceilings.allocation)
        ceilings = ceilings.raised_by(before) if isinstance(before, Ceilings) else ceilings
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json_aside(path, ceilings.to_json())
    except OSError as problem:
        raise UserError(
            f"the ceilings cannot be kept in {path.parent}: {problem.strerror or problem}; "
            "name a folder that can be written in XDG_CACHE_HOME"
        ) from problem
    return path


def read_kept(
    cache: Path, host_class: str, allocation: Sequence[Sequence[int]], runtime: str = "", version: str = ""
) -> Kept:
    """The ceilings kept for this machine: those of this framework before others, then the newest."""
    shape = tuple((cores, cpus) for cores, cpus in allocation)
    start = _start(host_class, shape)
    found: list[Ceilings] = []
    damage: list[str] = []
    try:
        paths = sorted((cache / FOLDER).glob(f"{start}*.json"))
    except OSError:
        paths = []
    for path in paths:
        read = _read(cache, path, host_class, shape)
        if isinstance(read, Ceilings):
            found.append(read)
        else:
            damage.append(read)

    def merit(each: Ceilings) -> tuple[bool, bool, int, str]:
        order = PREFERRED.index(each.runtime) if each.runtime in PREFERRED else len(PREFERRED)
        return (
            each.runtime == runtime and each.version == version,
            each.runtime == runtime,
            -order,
            each.measured_at,
        )

    return Kept(max(found, key=merit, default=None), tuple(damage))


def _read(
    cache: Path, path: Path, host_class: str, allocation: tuple[tuple[int, int], ...]
) -> Ceilings | str:
    """The ceilings in a file, or why they are not to be had."""
    try:
        read = Ceilings.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
        return f"{path} cannot be read ({type(problem).__name__}: {problem})"
    except RecursionError:
        return f"{path} cannot be read (RecursionError: it is nested too deep)"
    if (read.host_class, read.allocation) != (host_class, allocation):
        return f"{path} holds the ceilings of another machine or allocation"
    if kept_path(cache, read) != path:
        return f"{path} holds the ceilings of {read.runtime} {read.version}"
    return read


def _start(host_class: str, allocation: Sequence[Sequence[int]]) -> str:
    text = json.dumps([list(node) for node in allocation])
    return f"{host_class}-{hashlib.sha256(text.encode()).hexdigest()[:8]}-"


def _plain(version: str) -> str:
    return "".join(c if c.isalnum() or c in "._+" else "_" for c in version)
