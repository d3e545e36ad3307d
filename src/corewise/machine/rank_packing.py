"""Pack ranks onto cores: pure functions that expect cores in the order (class, socket, node, core)."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar


@dataclass(frozen=True)
class Core:
    """A physical core with its usable CPUs, lowest number first; class 0 is the fastest."""

    socket: int
    node: int
    number: int
    cpus: tuple[int, ...]
    core_class: int = 0


T = TypeVar("T")
Cores = list[Core]
# The CPUs of each rank.
Ranks = list[list[int]]
# Places a number of ranks with a number of threads each.
PlaceRanks = Callable[[Cores, int, int], Ranks]


def place_by_core_class(cores: Cores, num_ranks: int, num_threads: int, place: PlaceRanks) -> Ranks:
    """Place ranks on the fastest class of cores that has room; a rank mixes classes only if it must.

    It must if none of the classes that it gets has enough free cores. So a rank may mix the two fastest classes
    instead of using a slower one alone.

    Args:
        place: Places ranks on cores of one class.
    """
    classes = group_by(cores, lambda core: core.core_class)
    if len(classes) == 1:
        return place(cores, num_ranks, num_threads)
    if num_ranks * num_threads > count_cpus(cores):
        groups = [group for group in classes if count_cpus(group) >= num_threads] or [cores]
        counts = divide_ranks(groups, num_ranks, num_threads, [num_ranks] * len(groups))
        return [rank for g, n in zip(groups, counts, strict=True) if n for rank in place(g, n, num_threads)]
    needs_siblings = num_ranks * num_threads > len(cores)
    counts = _count_ranks_per_class(classes, num_ranks, num_threads, needs_siblings)
    ranks, free = Ranks(), Cores()
    for group, count in zip(classes, counts, strict=True):
        placed = min(count, num_ranks - len(ranks))
        ranks += place(group, placed, num_threads) if placed else []
        free = _list_free_cores([*free, *group], ranks, needs_siblings)
        if not needs_siblings or group is classes[-1]:
            room = (count_cpus(free) if needs_siblings else len(free)) // num_threads
            ranks += pack(free, min(room, num_ranks - len(ranks)), num_threads)
            free = _list_free_cores(free, ranks, needs_siblings)
    return ranks


def _count_ranks_per_class(classes: list[Cores], num_ranks: int, num_threads: int, needs_siblings: bool) -> list[int]:
    """Return ranks per class that need not mix: on whole cores first, then with SMT siblings."""
    counts = [0] * len(classes)
    for count_places in (len, count_cpus) if needs_siblings else (len,):
        for i, group in enumerate(classes):
            counts[i] += min(num_ranks - sum(counts), count_places(group) // num_threads - counts[i])
    return counts


def _list_free_cores(cores: Cores, ranks: Ranks, use_siblings: bool) -> Cores:
    """Return the unused cores; with siblings also cores of which some CPUs are unused."""
    used = {cpu for rank in ranks for cpu in rank}
    if not use_siblings:
        return [core for core in cores if used.isdisjoint(core.cpus)]
    left = [replace(core, cpus=tuple(cpu for cpu in core.cpus if cpu not in used)) for core in cores]
    return [core for core in left if core.cpus]


def pack(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Pack ranks onto neighbouring cores, with SMT siblings or sharing CPUs only if they must."""
    num_needed = num_ranks * num_threads
    if num_needed <= len(cores):
        return pack_on_whole_cores(cores, num_ranks, num_threads)
    if num_needed <= count_cpus(cores):
        return pack_on_every_core(cores, num_ranks, num_threads)
    return wrap_ranks(cores, num_ranks, num_threads)


def pack_on_whole_cores(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Give each rank exclusive cores: within a domain if possible, else within a socket, else anywhere."""
    free, ranks = list(cores), list[Cores]()
    for level in (_get_domain, _get_socket, _get_machine):
        for group in group_by(free, level):
            while len(ranks) < num_ranks and len(group) >= num_threads:
                rank = _take_from_fewest_domains(group, num_threads)
                group = [core for core in group if core not in rank]
                free = [core for core in free if core not in rank]
                ranks.append(rank)
    ranks.sort(key=lambda rank: cores.index(rank[0]))
    return [[core.cpus[0] for core in rank] for rank in ranks]


def _take_from_fewest_domains(cores: Cores, num_wanted: int) -> Cores:
    """Take the wanted number of cores from the domains with most cores."""
    fullest_first = sorted(group_by(cores, _get_domain), key=lambda group: -len(group))
    taken = [core for group in fullest_first for core in group][:num_wanted]
    return [core for core in cores if core in taken]


def pack_on_every_core(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Pack ranks that need SMT siblings: use every core, and avoid crossing domains, then sockets."""
    for level in (_get_domain, _get_socket):
        groups = group_by(cores, level)
        counts = _compute_filling_counts(groups, num_ranks, num_threads)
        if counts and len(groups) > 1:
            return [
                rank
                for group, count in zip(groups, counts, strict=True)
                for rank in pack_on_every_core(group, count, num_threads)
            ]
    return _share_cores(cores, num_ranks, num_threads)


def _compute_filling_counts(groups: list[Cores], num_ranks: int, num_threads: int) -> list[int]:
    """Return ranks per group such that whole ranks use all cores of each group; empty if impossible."""
    counts = [-(-len(group) // num_threads) for group in groups]
    limits = [count_cpus(group) // num_threads for group in groups]
    has_room = all(low <= high for low, high in zip(counts, limits, strict=True))
    if not has_room or not sum(counts) <= num_ranks <= sum(limits):
        return []
    while sum(counts) < num_ranks:
        growing = [i for i in range(len(groups)) if counts[i] < limits[i]]
        counts[max(growing, key=lambda i: (len(groups[i]) / (counts[i] + 1), -i))] += 1
    return counts


def _share_cores(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Divide the cores into near-equal runs; ranks take their own SMT siblings first, then spare ones."""
    runs = list[Cores]()
    for i in range(num_ranks):
        start = sum(len(run) for run in runs)
        runs.append(cores[start : start - (-(len(cores) - start) // (num_ranks - i))])
    ranks = [list_physical_first(run)[:num_threads] for run in runs]
    taken = {cpu for rank in ranks for cpu in rank}
    spare = [core for core in cores for cpu in core.cpus if cpu not in taken]
    for rank, run in zip(ranks, runs, strict=True):
        home = {_get_domain(core) for core in run}
        while len(rank) < num_threads:
            core = min(spare, key=lambda c: _get_domain(c) not in home)
            spare.remove(core)
            rank.append(next(cpu for cpu in core.cpus if cpu not in taken))
            taken.add(rank[-1])
    return ranks


def wrap_ranks(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Assign CPUs to ranks round-robin, for an equal load of all CPUs."""
    cpus = [cpu for core in cores for cpu in core.cpus]
    size = min(num_threads, len(cpus))
    return [[cpus[(rank * size + i) % len(cpus)] for i in range(size)] for rank in range(num_ranks)]


def place_each_evenly(cores: Cores, num_ranks: int, num_threads: int) -> Ranks:
    """Give each rank exclusive cores that are spread evenly over the nodes."""
    ranks = Ranks()
    for _ in range(num_ranks):
        ranks.append(take_evenly(cores, num_threads))
        cores = [core for core in cores if core.cpus[0] not in ranks[-1]]
    return ranks


def take_evenly(cores: Cores, num_wanted: int) -> list[int]:
    """Take CPUs from the nodes in turn, all physical cores before any SMT sibling."""
    taken, per_node = list[int](), Counter[int]()
    for level in range(max(len(core.cpus) for core in cores)):
        pool = [core for core in cores if level < len(core.cpus)]
        while pool and len(taken) < num_wanted:
            core = min(pool, key=lambda c: per_node[c.node])
            pool.remove(core)
            taken.append(core.cpus[level])
            per_node[core.node] += 1
    return taken


def divide_ranks(groups: list[Cores], num_ranks: int, num_threads: int, limits: list[int]) -> list[int]:
    """Return ranks per group: equal while cores last, then in proportion to the cores."""
    counts = [0] * len(groups)

    def compute_burden(i: int) -> tuple[bool, float]:
        crowded = (counts[i] + 1) * num_threads > len(groups[i])
        return crowded, (counts[i] + 1) / len(groups[i]) if crowded else counts[i]

    for _ in range(num_ranks):
        counts[min((i for i in range(len(groups)) if counts[i] < limits[i]), key=compute_burden)] += 1
    return counts


def _get_domain(core: Core) -> Hashable:
    """Return the domain that a rank should not cross: a NUMA node within a socket."""
    return core.socket, core.node


def _get_socket(core: Core) -> Hashable:
    return core.socket


def _get_machine(core: Core) -> Hashable:
    return None


def group_by_socket(cores: Cores) -> list[Cores]:
    """Return the cores of each socket."""
    return group_by(cores, _get_socket)


def group_by_node(cores: Cores) -> list[Cores]:
    """Return the cores of each NUMA node, alternating between sockets."""
    nodes = group_by(cores, lambda c: c.node)
    return merge_in_turn(group_by(nodes, lambda node: node[0].socket))


def group_by(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items by key, in the order of first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def merge_in_turn(groups: Iterable[list[T]]) -> list[T]:
    """Interleave groups: the first item of each, then the second of each, and so on."""
    return [item for turn in zip_longest(*groups) for item in turn if item is not None]


def list_physical_first(cores: Cores) -> list[int]:
    """Return the first CPU of every core, then the second of every core, and so on."""
    by_level = zip_longest(*(core.cpus for core in cores))
    return [cpu for level in by_level for cpu in level if cpu is not None]


def count_cpus(cores: Cores) -> int:
    """Return the number of CPUs of the cores."""
    return sum(len(core.cpus) for core in cores)
