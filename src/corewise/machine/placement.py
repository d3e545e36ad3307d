"""Which CPUs and memory nodes each rank of a trial gets: a pure function of the topology and the allocation.

Physical cores come before SMT siblings, under every policy. Reserved cores are those with the lowest
numbers, because that is where kernels put interrupts and housekeeping unless told otherwise.
"""

from collections.abc import Sequence
from enum import Enum

from corewise.machine.model import Topology
from corewise.machine.packing import (
    Core,
    Cores,
    Ranks,
    by_node,
    by_socket,
    dealt_counts,
    evenly_each,
    evenly_over_nodes,
    grouped,
    num_cpus,
    on_every_core,
    on_whole_cores,
    physical_first,
    taking_turns,
    wrapped_round,
)
from corewise.spec.errors import nearest
from corewise.spec.trial import RankPlacement

POLICIES = ("compact", "spread", "numa", "gpu")
MEMORY_POLICIES = ("default", "local", "interleave")


class Lack(Enum):
    """What stands against a placement; a caller tells its way out by it."""

    ALLOCATION = "more CPUs are asked for than the allocation has"
    NODE = "a rank does not fit within a NUMA node"
    GPU_NODE = "ranks do not fit beside their GPU"
    GPU = "there is no GPU to be near to"
    RESERVED = "no core is left"
    VALUE = "a number or a word that means nothing"


class PlacementError(ValueError):
    """The ranks cannot be placed; the text is the reason a point is skipped."""

    def __init__(self, reason: str, lack: Lack) -> None:
        super().__init__(reason)
        self.lack = lack


def place(
    topology: Topology,
    cpus: Sequence[int],
    *,
    num_processes: int,
    num_threads: int,
    policy: str = "compact",
    smt: bool = False,
    memory_policy: str = "default",
    num_reserved_cores: int = 0,
    oversubscribe: bool = False,
) -> tuple[RankPlacement, ...]:
    """One placement per rank, with `num_threads` CPUs each; raises PlacementError when that cannot be.

    - compact: neighbouring cores in the order (socket, node, core); a rank straddles a node, then a socket,
      only when too few whole slots exist.
    - spread: ranks dealt over the nodes, sockets by turns; a single rank's threads go evenly over all nodes.
    - numa: each rank within one node, ranks balanced over the nodes.
    - gpu: each rank on the node of its GPU, the first rank's being the first GPU.

    Ranks share no CPU unless `oversubscribe` is set and they would not fit; then they wrap round, and a rank
    of more threads than there are CPUs gets them all. CPUs unknown to the topology (offline) are not used.
    """
    _check(num_processes, num_threads, policy, memory_policy, num_reserved_cores)
    cores, num_reserved = _usable_cores(topology, cpus, smt, num_reserved_cores)
    if policy == "gpu":
        ranks = _gpu(topology, cores, num_processes, num_threads, smt)
        return tuple(_described(rank, cores, memory_policy) for rank in ranks)
    if num_processes * num_threads > num_cpus(cores) and not oversubscribe:
        has = f"the allocation has {num_cpus(cores)}"
        if num_reserved:
            has = f"the allocation has {num_cpus(cores) + num_reserved} ({num_reserved} reserved)"
        raise PlacementError(f"{_need(num_processes, num_threads, smt)}; {has}", Lack.ALLOCATION)
    if policy == "numa":
        ranks = _numa(cores, num_processes, num_threads, smt, oversubscribe)
    elif policy == "spread":
        ranks = _spread(cores, num_processes, num_threads)
    else:
        ranks = _compact(cores, num_processes, num_threads)
    return tuple(_described(rank, cores, memory_policy) for rank in ranks)


def _check(num_processes: int, num_threads: int, policy: str, memory_policy: str, num_reserved: int) -> None:
    for what, count, least in (
        ("processes", num_processes, 1),
        ("threads", num_threads, 1),
        ("reserved cores", num_reserved, 0),
    ):
        if count < least:
            raise PlacementError(f"{count} {what}: at least {least} needed", Lack.VALUE)
    for what, word, known in (
        ("placement", policy, POLICIES),
        ("memory policy", memory_policy, MEMORY_POLICIES),
    ):
        if word not in known:
            raise PlacementError(f"unknown {what} {word!r}; {nearest(word, known)}", Lack.VALUE)


def _usable_cores(topology: Topology, cpus: Sequence[int], smt: bool, num_reserved: int) -> tuple[Cores, int]:
    """The cores left to ranks in the order (socket, node, core), and the number of CPUs held back."""
    allowed = set(cpus)
    siblings: dict[int, list[int]] = {}
    where: dict[int, tuple[int, int]] = {}
    for cpu in sorted(topology.cpus, key=lambda c: c.number):
        if cpu.number in allowed:
            siblings.setdefault(cpu.core, []).append(cpu.number)
            where.setdefault(cpu.core, (cpu.socket, cpu.node))
    cores = [
        Core(*where[core], core, tuple(numbers if smt else numbers[:1])) for core, numbers in siblings.items()
    ]
    cores.sort(key=lambda c: c.number)
    if num_reserved >= len(cores):
        reason = f"{num_reserved} reserved cores leave none; the allocation has {len(cores)}"
        raise PlacementError(reason, Lack.RESERVED)
    kept = sorted(cores[num_reserved:], key=lambda c: (c.socket, c.node, c.number))
    return kept, num_cpus(cores[:num_reserved])


def _compact(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    num_needed = num_ranks * num_threads
    if num_needed <= len(cores):
        return on_whole_cores(cores, num_ranks, num_threads)
    if num_needed <= num_cpus(cores):
        return on_every_core(cores, num_ranks, num_threads)
    return wrapped_round(cores, num_ranks, num_threads)


def _numa(cores: Cores, num_ranks: int, num_threads: int, smt: bool, oversubscribe: bool) -> Ranks:
    nodes = by_node(cores)
    limits = [num_cpus(node) // num_threads for node in nodes]
    if sum(limits) < num_ranks:
        if not oversubscribe:
            sizes = "+".join(str(num_cpus(node)) for node in sorted(nodes, key=lambda n: n[0].node))
            unit = "CPUs" if smt else "cores"
            raise PlacementError(
                f"{_need(num_ranks, num_threads, smt)}, each process within one NUMA node; "
                f"the nodes have {sizes} {unit}, room for {sum(limits)} of them",
                Lack.NODE,
            )
        nodes = [node for node, limit in zip(nodes, limits, strict=True) if limit] or nodes
        limits = [num_ranks] * len(nodes)
    counts = dealt_counts(nodes, num_ranks, num_threads, limits)
    per_node = sorted(zip(nodes, counts, strict=True), key=lambda pair: pair[0][0].node)
    return [rank for node, count in per_node if count for rank in _compact(node, count, num_threads)]


def _gpu(topology: Topology, cores: Cores, num_ranks: int, num_threads: int, smt: bool) -> Ranks:
    """The ranks of each GPU's node side by side on it, in the order of the ranks."""
    if not topology.gpu_nodes:
        raise PlacementError("placement gpu: there is no GPU, or its NUMA node is not known", Lack.GPU)
    nodes = [topology.gpu_nodes[rank % len(topology.gpu_nodes)] for rank in range(num_ranks)]
    placed: dict[int, Ranks] = {}
    for node in dict.fromkeys(nodes):
        near = [core for core in cores if core.node == node]
        if num_cpus(near) < nodes.count(node) * num_threads:
            raise PlacementError(
                f"{_need(nodes.count(node), num_threads, smt)} near the GPU; "
                f"the allocation has {num_cpus(near)} on its NUMA node",
                Lack.GPU_NODE,
            )
        placed[node] = _compact(near, nodes.count(node), num_threads)
    return [placed[node].pop(0) for node in nodes]


def _spread(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    num_needed = num_ranks * num_threads
    if num_needed > num_cpus(cores):
        groups = [node for node in by_node(cores) if num_cpus(node) >= num_threads] or [cores]
        counts = dealt_counts(groups, num_ranks, num_threads, [num_ranks] * len(groups))
        return taking_turns(wrapped_round(g, n, num_threads) for g, n in zip(groups, counts, strict=True))
    if num_ranks == 1:
        return [evenly_over_nodes(cores, num_threads)]
    if num_needed > len(cores):  # every core is in use, so only the numbering of the ranks can be spread
        return _numbered_over_nodes(on_every_core(cores, num_ranks, num_threads), by_node(cores))
    for groups in (by_node(cores), by_socket(cores), [cores]):
        limits = [len(group) // num_threads for group in groups]
        if sum(limits) >= num_ranks:
            break
    counts = dealt_counts(groups, num_ranks, num_threads, limits)
    return taking_turns(evenly_each(g, n, num_threads) for g, n in zip(groups, counts, strict=True))


def _numbered_over_nodes(ranks: Ranks, nodes: list[Cores]) -> Ranks:
    turn_of = {cpu: turn for turn, node in enumerate(nodes) for core in node for cpu in core.cpus}
    in_turns = sorted(ranks, key=lambda rank: turn_of[rank[0]])
    return taking_turns(grouped(in_turns, lambda rank: turn_of[rank[0]]))


def _need(num_ranks: int, num_threads: int, smt: bool) -> str:
    processes = "process" if num_ranks == 1 else "processes"
    threads = "thread" if num_threads == 1 else "threads"
    needed, unit = num_ranks * num_threads, "CPU" if smt else "core"
    verb = "needs" if num_ranks == num_threads == 1 else "need"
    return f"{num_ranks} {processes} × {num_threads} {threads} {verb} {needed} {unit}{'s' * (needed != 1)}"


def _described(rank: list[int], cores: Cores, memory_policy: str) -> RankPlacement:
    """The rank's CPUs as neighbouring threads should use them: its cores in order, then siblings."""
    chosen = set(rank)
    nodes = {core.node for core in cores if not chosen.isdisjoint(core.cpus)}
    in_order = [cpu for cpu in physical_first(cores) if cpu in chosen]
    return RankPlacement(tuple(in_order), tuple(sorted(nodes)), memory_policy)
