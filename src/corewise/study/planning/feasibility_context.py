"""What decides whether a point can be measured here: the facts of the machine and the workload."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Traits, Workload


@dataclass(frozen=True)
class MachineView:
    """The facts of a machine that axes, constraints and feasibility depend on.

    `num_cores` and `num_cpus` are the physical cores and logical CPUs of the allocation, and `cores_near_gpu`
    its cores on the first GPU's NUMA node. `libraries` may hold tcmalloc, jemalloc, libiomp5 and libgomp.
    `transparent_huge_pages` is always, madvise or never. `num_nodes` counts the nodes that the run has, all
    like this one. `socket_cores` and `socket_cpus` are those of a socket that the allocation holds as a whole.
    None, 0 or an empty text means unknown or none.
    """

    num_cores: int
    num_cpus: int
    num_numa_nodes: int = 1
    num_sockets: int = 1
    has_cuda: bool | None = None
    libraries: frozenset[str] = frozenset()
    memory_bytes: int = 0
    num_gpus: int | None = None
    instruction_sets: frozenset[str] | None = None
    cores_near_gpu: int = 0
    transparent_huge_pages: str = ""
    num_nodes: int | None = 1
    socket_cores: int = 0
    socket_cpus: int = 0

    def count_socket(self, *, smt: bool) -> int:
        """Return the cores (CPUs with `smt`) of a whole socket; 0 if the allocation holds none."""
        return self.socket_cpus if smt else self.socket_cores

    def count_usable(self, *, smt: bool, num_reserved_cores: int) -> int:
        """Return the cores (CPUs with `smt`) that reserved cores leave; may be less than one."""
        if not smt:
            return self.num_cores - num_reserved_cores
        return self.num_cpus - num_reserved_cores * (self.num_cpus // self.num_cores)


@dataclass(frozen=True)
class FeasibilityContext:
    """What decides about a point apart from its parameters.

    `workload` is None for a user's own workload, whose properties are unknown. `hints` says how to install
    each library. The caches hold results by the workload's arguments, because inspecting a model takes time.
    """

    machine: MachineView
    workload: Workload | None = None
    hints: Mapping[str, str] = field(default_factory=dict)
    cached_refusals: dict[str, str] = field(default_factory=dict)
    cached_traits: dict[str, Traits] = field(default_factory=dict)


# Yields the reasons why a point cannot be measured.
Rule = Callable[[TrialParameters, FeasibilityContext], Iterator[str]]
