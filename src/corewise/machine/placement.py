"""Place ranks: the CPUs and memory nodes of each rank as a pure function of topology and allocation.

Every policy uses physical cores before SMT siblings, and fast cores before slow ones. Reserved cores are those
with the lowest numbers, because there the kernel handles interrupts and housekeeping by default.
"""

from collections.abc import Sequence
from enum import Enum

from corewise.errors import suggest_nearest
from corewise.machine.machine_model import Topology
from corewise.machine.rank_packing import (
    Core,
    Cores,
    Ranks,
    count_cpus,
    divide_ranks,
    group_by,
    group_by_node,
    group_by_socket,
    list_physical_first,
    merge_in_turn,
    pack,
    pack_on_every_core,
    place_by_core_class,
    place_each_evenly,
    take_evenly,
    wrap_ranks,
)
from corewise.measured.trial import RankPlacement

POLICIES = ("compact", "spread", "numa", "gpu")
MEMORY_POLICIES = ("default", "local", "interleave")


class PlacementProblem(Enum):
    """Why a placement is impossible; callers choose their remedy by it."""

    ALLOCATION = "more CPUs are requested than the allocation has"
    NODE = "a rank does not fit within a NUMA node"
    GPU_NODE = "ranks do not fit on the NUMA node of their GPU"
    GPU = "there is no GPU"
    RESERVED = "no core is left"
    VALUE = "an invalid number or name"


class PlacementError(ValueError):
    """The ranks cannot be placed; the text is the reason a point is skipped."""

    def __init__(self, reason: str, problem: PlacementProblem) -> None:
        super().__init__(reason)
        self.problem = problem


def place_ranks(
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
    """Return one placement per rank, with `num_threads` CPUs each, or raise PlacementError.

    - compact: neighbouring cores in the order (socket, node, core). A rank crosses a node, then a socket,
      only if too few whole slots exist.
    - spread: ranks are distributed over nodes and sockets; threads of a single rank spread over all nodes.
    - numa: each rank stays within one node, and ranks are balanced over the nodes.
    - gpu: each rank runs on the node of its GPU; the first rank uses the first GPU.

    Ranks share CPUs only if `oversubscribe` is set and they do not fit. They then wrap around, and a rank
    with more threads than CPUs gets all CPUs. CPUs that are not in the topology (offline) are not used.

    On hybrid processors the fastest type of core comes first. A rank stays on one type, unless none of the types
    that it gets has enough free cores.
    """
    _check_request(num_processes, num_threads, policy, memory_policy, num_reserved_cores)
    cores, num_reserved = _list_usable_cores(topology, cpus, smt, num_reserved_cores)
    if policy == "gpu":
        ranks = _place_near_gpus(topology, cores, num_processes, num_threads, smt)
        return tuple(_build_placement(rank, cores, memory_policy) for rank in ranks)
    if num_processes * num_threads > count_cpus(cores) and not oversubscribe:
        supply = f"the allocation has {count_cpus(cores)}"
        if num_reserved:
            supply = f"the allocation has {count_cpus(cores) + num_reserved} ({num_reserved} reserved)"
        raise PlacementError(
            f"{_describe_need(num_processes, num_threads, smt)}; {supply}", PlacementProblem.ALLOCATION
        )
    if policy == "numa":
        ranks = _place_numa(cores, num_processes, num_threads, smt, oversubscribe)
    elif policy == "spread":
        ranks = _place_spread(cores, num_processes, num_threads)
    else:
        ranks = _place_compact(cores, num_processes, num_threads)
    return tuple(_build_placement(rank, cores, memory_policy) for rank in ranks)


def _check_request(num_processes: int, num_threads: int, policy: str, memory_policy: str, num_reserved: int) -> None:
    for name, count, minimum in (
        ("processes", num_processes, 1),
        ("threads", num_threads, 1),
        ("reserved cores", num_reserved, 0),
    ):
        if count < minimum:
            raise PlacementError(f"{count} {name}: at least {minimum} needed", PlacementProblem.VALUE)
    for name, value, known in (("placement", policy, POLICIES), ("memory policy", memory_policy, MEMORY_POLICIES)):
        if value not in known:
            raise PlacementError(f"unknown {name} {value!r}; {suggest_nearest(value, known)}", PlacementProblem.VALUE)


def _list_usable_cores(topology: Topology, cpus: Sequence[int], smt: bool, num_reserved: int) -> tuple[Cores, int]:
    """Return the usable cores in the order (class, socket, node, core) and the number of reserved CPUs."""
    allowed = set(cpus)
    siblings: dict[int, list[int]] = {}
    locations: dict[int, tuple[int, int, int]] = {}
    for cpu in sorted(topology.cpus, key=lambda c: c.number):
        if cpu.number in allowed:
            siblings.setdefault(cpu.core, []).append(cpu.number)
            locations.setdefault(cpu.core, (cpu.socket, cpu.node, cpu.core_class))
    cores = []
    for core, numbers in siblings.items():
        socket, node, core_class = locations[core]
        cores.append(Core(socket, node, core, tuple(numbers if smt else numbers[:1]), core_class))
    cores.sort(key=lambda c: c.number)
    if num_reserved >= len(cores):
        reason = f"{num_reserved} reserved cores leave none; the allocation has {len(cores)}"
        raise PlacementError(reason, PlacementProblem.RESERVED)
    usable = sorted(cores[num_reserved:], key=lambda c: (c.core_class, c.socket, c.node, c.number))
    return usable, count_cpus(cores[:num_reserved])


def _place_compact(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    return place_by_core_class(cores, num_ranks, num_threads, pack)


def _place_numa(cores: Cores, num_ranks: int, num_threads: int, smt: bool, oversubscribe: bool) -> Ranks:
    nodes = group_by_node(cores)
    limits = [count_cpus(node) // num_threads for node in nodes]
    if sum(limits) < num_ranks:
        if not oversubscribe:
            sizes = "+".join(str(count_cpus(node)) for node in sorted(nodes, key=lambda n: n[0].node))
            unit = "CPUs" if smt else "cores"
            raise PlacementError(
                f"{_describe_need(num_ranks, num_threads, smt)}, each process within one NUMA node; "
                f"the nodes have {sizes} {unit}, room for {sum(limits)} of them",
                PlacementProblem.NODE,
            )
        nodes = [node for node, limit in zip(nodes, limits, strict=True) if limit] or nodes
        limits = [num_ranks] * len(nodes)
    counts = divide_ranks(nodes, num_ranks, num_threads, limits)
    per_node = sorted(zip(nodes, counts, strict=True), key=lambda pair: pair[0][0].node)
    return [rank for node, count in per_node if count for rank in _place_compact(node, count, num_threads)]


def _place_near_gpus(topology: Topology, cores: Cores, num_ranks: int, num_threads: int, smt: bool) -> Ranks:
    """Place the ranks of each GPU on neighbouring cores of its node, in the order of the ranks."""
    if not topology.gpu_nodes:
        raise PlacementError("placement gpu: there is no GPU, or its NUMA node is not known", PlacementProblem.GPU)
    nodes = [topology.gpu_nodes[rank % len(topology.gpu_nodes)] for rank in range(num_ranks)]
    placed: dict[int, Ranks] = {}
    for node in dict.fromkeys(nodes):
        near = [core for core in cores if core.node == node]
        if count_cpus(near) < nodes.count(node) * num_threads:
            raise PlacementError(
                f"{_describe_need(nodes.count(node), num_threads, smt)} near the GPU; "
                f"the allocation has {count_cpus(near)} on its NUMA node",
                PlacementProblem.GPU_NODE,
            )
        placed[node] = _place_compact(near, nodes.count(node), num_threads)
    return [placed[node].pop(0) for node in nodes]


def _place_spread(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    return place_by_core_class(cores, num_ranks, num_threads, _spread_over_nodes)


def _spread_over_nodes(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    num_needed = num_ranks * num_threads
    if num_needed > count_cpus(cores):
        groups = [node for node in group_by_node(cores) if count_cpus(node) >= num_threads] or [cores]
        counts = divide_ranks(groups, num_ranks, num_threads, [num_ranks] * len(groups))
        return merge_in_turn(wrap_ranks(g, n, num_threads) for g, n in zip(groups, counts, strict=True))
    if num_ranks == 1:
        return [take_evenly(cores, num_threads)]
    # Every core is in use, so only the numbering of the ranks can be spread.
    if num_needed > len(cores):
        return _order_over_nodes(pack_on_every_core(cores, num_ranks, num_threads), group_by_node(cores))
    for groups in (group_by_node(cores), group_by_socket(cores), [cores]):
        limits = [len(group) // num_threads for group in groups]
        if sum(limits) >= num_ranks:
            break
    counts = divide_ranks(groups, num_ranks, num_threads, limits)
    return merge_in_turn(place_each_evenly(g, n, num_threads) for g, n in zip(groups, counts, strict=True))


def _order_over_nodes(ranks: Ranks, nodes: list[Cores]) -> Ranks:
    node_index = {cpu: index for index, node in enumerate(nodes) for core in node for cpu in core.cpus}
    by_node = sorted(ranks, key=lambda rank: node_index[rank[0]])
    return merge_in_turn(group_by(by_node, lambda rank: node_index[rank[0]]))


def _describe_need(num_ranks: int, num_threads: int, smt: bool) -> str:
    processes = "process" if num_ranks == 1 else "processes"
    threads = "thread" if num_threads == 1 else "threads"
    needed, unit = num_ranks * num_threads, "CPU" if smt else "core"
    verb = "needs" if num_ranks == num_threads == 1 else "need"
    return f"{num_ranks} {processes} × {num_threads} {threads} {verb} {needed} {unit}{'s' * (needed != 1)}"


def _build_placement(rank: list[int], cores: Cores, memory_policy: str) -> RankPlacement:
    """Return the rank's placement with its CPUs in thread order: cores first, then SMT siblings."""
    chosen = set(rank)
    nodes = {core.node for core in cores if not chosen.isdisjoint(core.cpus)}
    ordered = [cpu for cpu in list_physical_first(cores) if cpu in chosen]
    return RankPlacement(tuple(ordered), tuple(sorted(nodes)), memory_policy)
