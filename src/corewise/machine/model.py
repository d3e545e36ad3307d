"""What a machine is made of and what part of it we may use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cpu:
    """One logical CPU as the kernel numbers it."""

    number: int
    core: int  # unique on the machine: the lowest CPU number among its SMT siblings
    socket: int
    node: int  # NUMA node


@dataclass(frozen=True)
class Topology:
    """The online CPUs of a machine, in the order of their numbers."""

    cpus: tuple[Cpu, ...]
    offline: tuple[int, ...] = ()
    gpu_nodes: tuple[int, ...] = ()  # the NUMA node of each visible GPU; none where it is not known

    def restricted(self, numbers: tuple[int, ...]) -> "Topology":
        """The part of the topology made of the given CPUs."""
        keep = set(numbers)
        return Topology(tuple(c for c in self.cpus if c.number in keep), gpu_nodes=self.gpu_nodes)

    def near_gpu(self, rank: int) -> "Topology":
        """The part of the topology on the NUMA node of the rank's GPU; nothing where that is not known."""
        nodes = self.gpu_nodes
        return Topology(tuple(c for c in self.cpus if nodes and c.node == nodes[rank % len(nodes)]))

    @property
    def num_cores(self) -> int:
        return len({c.core for c in self.cpus})

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({c.node for c in self.cpus}))

    @property
    def sockets(self) -> tuple[int, ...]:
        return tuple(sorted({c.socket for c in self.cpus}))


@dataclass(frozen=True)
class Limit:
    """One thing that narrows the allocation, with what it leaves."""

    source: str  # affinity, cpuset, quota, slurm
    num_cpus: int
    detail: str


@dataclass(frozen=True)
class Allocation:
    """The CPUs and the memory we may use."""

    cpus: tuple[int, ...]
    num_cores: int  # physical cores among them
    memory_bytes: int
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A claim with its evidence and its remedy."""

    key: str
    severity: str  # info | warning | error
    claim: str
    evidence: str
    remedy: str
