"""Ways to lay ranks on cores: pure, and all keep to the order (socket, node, core) of the cores given."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar


@dataclass(frozen=True)
class Core:
    """A physical core with those of its CPUs we may use, lowest number first."""

    socket: int
    node: int
    number: int
    cpus: tuple[int, ...]


T = TypeVar("T")
Cores = list[Core]
Ranks = list[list[int]]  # the CPUs of each rank


def on_whole_cores(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Ranks on cores of their own: as many as fit within a domain, then within a socket, then anywhere."""
    free, ranks = list(cores), list[Cores]()
    for level in (_domain, _socket, _machine):
        for group in grouped(free, level):
            while len(ranks) < num_ranks and len(group) >= num_threads:
                rank = _from_fewest_domains(group, num_threads)
                group = [core for core in group if core not in rank]
                free = [core for core in free if core not in rank]
                ranks.append(rank)
    ranks.sort(key=lambda rank: cores.index(rank[0]))
    return [[core.cpus[0] for core in rank] for rank in ranks]


def _from_fewest_domains(cores: Cores, num_wanted: int) -> Cores:
    """The wanted number of cores, out of the domains with most to give."""
    fullest_first = sorted(grouped(cores, _domain), key=lambda group: -len(group))
    taken = [core for group in fullest_first for core in group][:num_wanted]
    return [core for core in cores if core in taken]


def on_every_core(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Ranks that need siblings: every core is used; domains, then sockets, are not straddled if possible."""
    for level in (_domain, _socket):
        groups = grouped(cores, level)
        counts = _filling_counts(groups, num_ranks, num_threads)
        if counts and len(groups) > 1:
            return [
                rank
                for group, count in zip(groups, counts, strict=True)
                for rank in on_every_core(group, count, num_threads)
            ]
    return _shared_out(cores, num_ranks, num_threads)


def _filling_counts(groups: list[Cores], num_ranks: int, num_threads: int) -> list[int]:
    """Ranks per group so that each group's cores are all used by whole ranks; empty when impossible."""
    counts = [-(-len(group) // num_threads) for group in groups]
    limits = [num_cpus(group) // num_threads for group in groups]
    fits = all(low <= high for low, high in zip(counts, limits, strict=True))
    if not fits or not sum(counts) <= num_ranks <= sum(limits):
        return []
    while sum(counts) < num_ranks:
        growing = [i for i in range(len(groups)) if counts[i] < limits[i]]
        counts[max(growing, key=lambda i: (len(groups[i]) / (counts[i] + 1), -i))] += 1
    return counts


def _shared_out(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Near-equal runs of neighbouring cores; siblings of a rank's own cores first, then left-over ones."""
    runs = list[Cores]()
    for i in range(num_ranks):
        start = sum(len(run) for run in runs)
        runs.append(cores[start : start - (-(len(cores) - start) // (num_ranks - i))])
    ranks = [physical_first(run)[:num_threads] for run in runs]
    taken = {cpu for rank in ranks for cpu in rank}
    spare = [core for core in cores for cpu in core.cpus if cpu not in taken]
    for rank, run in zip(ranks, runs, strict=True):
        home = {_domain(core) for core in run}
        while len(rank) < num_threads:
            core = min(spare, key=lambda c: _domain(c) not in home)  # the first of the nearest
            spare.remove(core)
            rank.append(next(cpu for cpu in core.cpus if cpu not in taken))
            taken.add(rank[-1])
    return ranks


def wrapped_round(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Ranks laid end to end round all CPUs, so that each CPU carries the same load."""
    cpus = [cpu for core in cores for cpu in core.cpus]
    size = min(num_threads, len(cpus))
    return [[cpus[(rank * size + i) % len(cpus)] for i in range(size)] for rank in range(num_ranks)]


def evenly_each(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Ranks of cores of their own, each spread evenly over the nodes."""
    ranks = Ranks()
    for _ in range(num_ranks):
        ranks.append(evenly_over_nodes(cores, num_threads))
        cores = [core for core in cores if core.cpus[0] not in ranks[-1]]
    return ranks


def evenly_over_nodes(cores: Cores, num_wanted: int) -> list[int]:
    """CPUs taken from the nodes by turns, every node's cores before any sibling."""
    taken, per_node = list[int](), Counter[int]()
    for level in range(max(len(core.cpus) for core in cores)):
        pool = [core for core in cores if level < len(core.cpus)]
        while pool and len(taken) < num_wanted:
            core = min(pool, key=lambda c: per_node[c.node])
            pool.remove(core)
            taken.append(core.cpus[level])
            per_node[core.node] += 1
    return taken


def dealt_counts(groups: list[Cores], num_ranks: int, num_threads: int, limits: list[int]) -> list[int]:
    """Ranks per group: equal while cores last, in proportion to the cores once siblings or sharing begin."""
    counts = [0] * len(groups)

    def burden(i: int) -> tuple[bool, float]:
        crowded = (counts[i] + 1) * num_threads > len(groups[i])
        return crowded, (counts[i] + 1) / len(groups[i]) if crowded else counts[i]

    for _ in range(num_ranks):
        counts[min((i for i in range(len(groups)) if counts[i] < limits[i]), key=burden)] += 1
    return counts


def _domain(core: Core) -> Hashable:
    """What a rank should not straddle: a NUMA node within a socket."""
    return core.socket, core.node


def _socket(core: Core) -> Hashable:
    return core.socket


def _machine(core: Core) -> Hashable:
    return None


def by_socket(cores: Cores) -> list[Cores]:
    """The cores of each socket."""
    return grouped(cores, _socket)


def by_node(cores: Cores) -> list[Cores]:
    """The cores of each NUMA node, nodes of different sockets by turns."""
    nodes = grouped(cores, lambda c: c.node)
    return taking_turns(grouped(nodes, lambda node: node[0].socket))


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items of equal key together, in the order of first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def taking_turns(groups: Iterable[list[T]]) -> list[T]:
    """One item of each group, then the next of each, until none is left."""
    return [item for turn in zip_longest(*groups) for item in turn if item is not None]


def physical_first(cores: Cores) -> list[int]:
    """The first CPU of every core, then the second of every core that has one, and so on."""
    by_level = zip_longest(*(core.cpus for core in cores))
    return [cpu for level in by_level for cpu in level if cpu is not None]


def num_cpus(cores: Cores) -> int:
    """How many CPUs the cores offer."""
    return sum(len(core.cpus) for core in cores)
