"""The cache of measured ceilings: one file per class of machine, allocation and framework."""

import errno
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corewise.cache_folder import create_own_folder
from corewise.errors import UserError
from corewise.machine.ceilings.table import Ceilings
from corewise.machine.machine_model import Allocation, Topology
from corewise.measured.trial import write_json_atomically
from corewise.trusted_paths import explain_distrust

# The folder within the user's cache.
FOLDER = "ceilings"
# The order of frameworks if the wanted one has no ceilings.
PREFERRED = ("torch", "numpy")


@dataclass(frozen=True)
class CachedCeilings:
    """The cached ceilings of this machine, and why files could not be read."""

    ceilings: Ceilings | None
    problems: tuple[str, ...] = ()


def compute_allocation_shape(topology: Topology, allocation: Allocation) -> tuple[tuple[int, int], ...]:
    """Return cores and CPUs per NUMA node, largest first; equivalent allocations have equal shapes.

    A node of a hybrid machine has one entry per class of cores, fastest first.
    """
    usable = topology.select_cpus(allocation.cpus)
    nodes = [tuple(_count_cores(usable, node, each) for each in topology.core_classes) for node in usable.nodes]
    return tuple(counts for node in sorted(nodes, reverse=True) for counts in node)


def _count_cores(topology: Topology, node: int, core_class: int) -> tuple[int, int]:
    cpus = [cpu for cpu in topology.cpus if (cpu.node, cpu.core_class) == (node, core_class)]
    return len({cpu.core for cpu in cpus}), len(cpus)


def build_cache_path(cache: Path, ceilings: Ceilings) -> Path:
    """Return the cache file of these ceilings."""
    start = _build_prefix(ceilings.host_class, ceilings.allocation)
    return cache / FOLDER / f"{start}{ceilings.runtime}-{_clean_version(ceilings.version)}.json"


def save_ceilings(cache: Path, ceilings: Ceilings, again: bool = False) -> Path:
    """Write the ceilings atomically and return their file.

    A higher figure of an earlier measurement stays, unless `again` is set.

    Raises:
        UserError: the folder is not writable, or others can change it.
    """
    path = build_cache_path(cache, ceilings)
    if not again:
        before = _read_ceilings(cache, path, ceilings.host_class, ceilings.allocation)
        ceilings = ceilings.merge_higher(before) if isinstance(before, Ceilings) else ceilings
    refusal = create_own_folder(path.parent)
    try:
        if refusal:
            raise PermissionError(errno.EACCES, refusal)
        write_json_atomically(path, ceilings.to_json())
    except OSError as problem:
        raise UserError(
            f"the ceilings cannot be written to {path.parent}: {problem.strerror or problem}; "
            "set XDG_CACHE_HOME to a folder that you can write to and nobody else can change"
        ) from problem
    return path


def read_cached_ceilings(
    cache: Path, host_class: str, allocation: Sequence[Sequence[int]], runtime: str = "", version: str = ""
) -> CachedCeilings:
    """Read the cached ceilings of this machine: this framework before others, then the newest."""
    shape = tuple((cores, cpus) for cores, cpus in allocation)
    start = _build_prefix(host_class, shape)
    cached: list[Ceilings] = []
    damage: list[str] = []
    try:
        paths = sorted((cache / FOLDER).glob(f"{start}*.json"))
    except OSError:
        paths = []
    for path in paths:
        ceilings = _read_ceilings(cache, path, host_class, shape)
        if isinstance(ceilings, Ceilings):
            cached.append(ceilings)
        else:
            damage.append(ceilings)

    def rank_match(each: Ceilings) -> tuple[bool, bool, int, str]:
        order = PREFERRED.index(each.runtime) if each.runtime in PREFERRED else len(PREFERRED)
        return (each.runtime == runtime and each.version == version, each.runtime == runtime, -order, each.measured_at)

    return CachedCeilings(max(cached, key=rank_match, default=None), tuple(damage))


def _read_ceilings(cache: Path, path: Path, host_class: str, allocation: tuple[tuple[int, int], ...]) -> Ceilings | str:
    """Return the ceilings in a file, or why they cannot be used."""
    refusal = explain_distrust(path)
    if refusal:
        return f"{path} is not used: {refusal}"
    try:
        ceilings = Ceilings.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as problem:
        return f"{path} cannot be read ({type(problem).__name__}: {problem})"
    except RecursionError:
        return f"{path} cannot be read (RecursionError: nested too deeply)"
    if (ceilings.host_class, ceilings.allocation) != (host_class, allocation):
        return f"{path} holds the ceilings of another machine or allocation"
    if build_cache_path(cache, ceilings) != path:
        return f"{path} holds the ceilings of {ceilings.runtime} {ceilings.version}"
    return ceilings


def _build_prefix(host_class: str, allocation: Sequence[Sequence[int]]) -> str:
    text = json.dumps([list(node) for node in allocation])
    return f"{host_class}-{hashlib.sha256(text.encode()).hexdigest()[:8]}-"


def _clean_version(version: str) -> str:
    return "".join(c if c.isalnum() or c in "._+" else "_" for c in version)
