"""The values that describe a machine: its CPUs, the allocation, and findings about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """One logical CPU as the kernel numbers it.

    `core` is the lowest CPU number among its SMT siblings, and `node` its NUMA node. `core_class` is 0 for the
    fastest type of core; only hybrid processors have others.
    """

    number: int
    core: int
    socket: int
    node: int
    core_class: int = 0


@dataclass(frozen=True)
class Topology:
    """The online CPUs of a machine in the order of their numbers.

    `gpu_nodes` is the NUMA node of each visible GPU; it is empty if they are unknown.
    """

    cpus: tuple[Cpu, ...]
    offline: tuple[int, ...] = ()
    gpu_nodes: tuple[int, ...] = ()

    def select_cpus(self, numbers: tuple[int, ...]) -> "Topology":
        """Return the part of the topology with the given CPUs."""
        selected = set(numbers)
        return Topology(tuple(c for c in self.cpus if c.number in selected), gpu_nodes=self.gpu_nodes)

    def select_near_gpu(self, rank: int) -> "Topology":
        """Return the part of the topology on the NUMA node of the rank's GPU; empty if unknown."""
        nodes = self.gpu_nodes
        return Topology(tuple(c for c in self.cpus if nodes and c.node == nodes[rank % len(nodes)]))

    @property
    def num_cores(self) -> int:
        return len({c.core for c in self.cpus})

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({c.node for c in self.cpus}))

    @property
    def core_classes(self) -> tuple[int, ...]:
        return tuple(sorted({c.core_class for c in self.cpus}))

    @property
    def sockets(self) -> tuple[int, ...]:
        return tuple(sorted({c.socket for c in self.cpus}))


@dataclass(frozen=True)
class Limit:
    """One limit of the allocation and the CPUs it leaves.

    `source` is affinity, cpuset, quota, slurm or memory.
    """

    source: str
    num_cpus: int
    detail: str


@dataclass(frozen=True)
class Allocation:
    """The CPUs, with `num_cores` physical cores among them, and the memory that we may use."""

    cpus: tuple[int, ...]
    num_cores: int
    memory_bytes: int
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class MachineFinding:
    """A claim with its evidence and its remedy; `severity` is info, warning or error."""

    key: str
    severity: str
    claim: str
    evidence: str
    remedy: str
