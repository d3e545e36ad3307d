"""Read the part of the machine that this process may use: affinity, cgroups and Slurm."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from corewise.machine.machine_model import Allocation, Limit, Topology
from corewise.machine.rank_packing import Core, group_by, pack_on_whole_cores
from corewise.machine.slurm import SlurmGrant, read_grant
from corewise.machine.topology import format_cpu_list
from corewise.measured.cgroups import read_cpu_quota, read_cpu_sets, read_memory_limit
from corewise.measured.sysfs import parse_cpu_list, parse_kib, read_table, read_text

GIB = 1 << 30


def read_allocation(
    topology: Topology,
    root: Path = Path("/"),
    env: Mapping[str, str] = os.environ,
    affinity: Collection[int] | None = None,
    hostname: str | None = None,
) -> Allocation:
    """Return the CPUs and memory that affinity, cgroups and Slurm leave, with each effective limit."""
    grant = read_grant(env, hostname or read_hostname(root))
    cpus = {cpu.number for cpu in topology.cpus}
    limits: list[Limit] = []
    for source, allowed, detail in _read_masks(root, affinity):
        remaining = cpus & allowed
        # A mask without any of our CPUs is damaged or belongs to another machine.
        if remaining and remaining != cpus:
            cpus = remaining
            limits.append(Limit(source, len(cpus), detail))
    for source, num_cpus, detail in _read_cpu_counts(root, grant):
        if num_cpus < len(cpus):
            cpus = set(choose_cpus(topology, cpus, num_cpus))
            limits.append(Limit(source, num_cpus, detail))
    memory_bytes, memory_limits = _read_memory(root, grant, len(cpus))
    usable_cpus = tuple(sorted(cpus))
    num_cores = topology.select_cpus(usable_cpus).num_cores
    return Allocation(usable_cpus, num_cores, memory_bytes, (*limits, *memory_limits))


def choose_cpus(topology: Topology, cpus: Collection[int], num_cpus: int) -> tuple[int, ...]:
    """Choose CPUs: physical cores before SMT siblings, on as few NUMA nodes as possible, fast cores first."""
    # The CPUs of each (node, core).
    threads: dict[tuple[int, int], list[int]] = {}
    sockets: dict[int, int] = {}
    class_of = {cpu.core: cpu.core_class for cpu in topology.cpus}
    for cpu in topology.select_cpus(tuple(cpus)).cpus:
        threads.setdefault((cpu.node, cpu.core), []).append(cpu.number)
        sockets.setdefault(cpu.node, cpu.socket)
    num_cores = {node: sum(1 for n, _ in threads if n == node) for node in sorted(sockets)}
    sufficient = [node for node, num in num_cores.items() if num >= num_cpus]
    first = sufficient[0] if sufficient else max(num_cores, key=lambda node: num_cores[node])
    rank = {node: (node != first, sockets[node] != sockets[first], -num_cores[node], node) for node in num_cores}
    in_order = sorted(
        (sibling, rank[node], class_of[core], core, number)
        for (node, core), numbers in threads.items()
        for sibling, number in enumerate(numbers)
    )
    return tuple(sorted(number for *_, number in in_order[:num_cpus]))


def restrict_allocation(topology: Topology, allocation: Allocation, index: int, num_shares: int) -> Allocation:
    """Return the part of an allocation that one of several node processes on the same machine may use.

    Raises:
        ValueError: there are fewer cores than shares.
    """
    cpus = split_allocation(topology, allocation.cpus, index, num_shares)
    num_cores = topology.select_cpus(cpus).num_cores
    return replace(allocation, cpus=cpus, num_cores=num_cores, memory_bytes=allocation.memory_bytes // num_shares)


def split_allocation(topology: Topology, cpus: Sequence[int], index: int, num_shares: int) -> tuple[int, ...]:
    """Return one of several equal and disjoint shares of the CPUs, made of whole cores.

    Node processes that run on the same machine divide its allocation this way. Every share has the same number of
    cores and, on hybrid processors, of each type of core where that is possible. Cores that are left over stay
    unused, so that all nodes are alike. A share crosses a NUMA node, then a socket, only if it must.

    Args:
        cpus: The CPUs of the allocation; CPUs that are not in the topology (offline) are not used.
        index: The share to return, from 0.
        num_shares: The number of shares.

    Raises:
        ValueError: there are fewer cores than shares, or no such share.

    Example:
        Two shares of four cores with two hardware threads each: `split_allocation(topology, range(8), 1, 2)`
        returns `(2, 3, 6, 7)`.
    """
    if num_shares < 1 or not 0 <= index < num_shares:
        raise ValueError(f"share {index} of {num_shares} does not exist; shares are numbered from 0")
    cores = _list_cores(topology, cpus)
    if len(cores) < num_shares:
        raise ValueError(
            f"{len(cores)} core{'s' * (len(cores) != 1)} cannot be split into {num_shares} shares of whole cores"
        )
    first_cpus, left = list[int](), list[Core]()
    for group in group_by(cores, lambda core: core.core_class):
        shares = pack_on_whole_cores(group, num_shares, len(group) // num_shares) if len(group) >= num_shares else []
        taken = {cpu for share in shares for cpu in share}
        first_cpus += shares[index] if shares else []
        left += [core for core in group if core.cpus[0] not in taken]
    # Classes with too few cores for all shares are divided together.
    if len(left) >= num_shares:
        first_cpus += pack_on_whole_cores(left, num_shares, len(left) // num_shares)[index]
    return tuple(sorted(cpu for core in cores if core.cpus[0] in first_cpus for cpu in core.cpus))


def _list_cores(topology: Topology, cpus: Collection[int]) -> list[Core]:
    """Return the usable cores with all their usable CPUs, in the order (class, socket, node, core)."""
    groups = group_by(topology.select_cpus(tuple(cpus)).cpus, lambda cpu: cpu.core)
    cores = [
        Core(each[0].socket, each[0].node, each[0].core, tuple(cpu.number for cpu in each), each[0].core_class)
        for each in groups
    ]
    return sorted(cores, key=lambda core: (core.core_class, core.socket, core.node, core.number))


def read_hostname(root: Path = Path("/")) -> str:
    """Return the host's name."""
    return read_text(root / "proc/sys/kernel/hostname") or os.uname().nodename


def read_memory_total(root: Path = Path("/")) -> int:
    """Return the machine's memory in bytes, or 0 if unknown."""
    return parse_kib(read_table(root / "proc/meminfo").get("MemTotal")) or 0


def _read_masks(root: Path, affinity: Collection[int] | None) -> Iterator[tuple[str, set[int], str]]:
    # Cpusets come first: the kernel already applied them to the affinity mask, which would get the blame.
    for cpu_set in read_cpu_sets(root):
        yield "cpuset", set(cpu_set.cpus), f"{cpu_set.file} = {format_cpu_list(cpu_set.cpus)}"
    mask = set(affinity) if affinity is not None else _read_affinity(root)
    if mask is not None:
        yield "affinity", mask, f"affinity mask = {format_cpu_list(mask)}"


def _read_affinity(root: Path) -> set[int] | None:
    if root == Path("/"):
        return set(os.sched_getaffinity(0))
    try:
        return set(parse_cpu_list(read_table(root / "proc/self/status")["Cpus_allowed_list"]))
    except (KeyError, ValueError):
        return None


def _read_cpu_counts(root: Path, grant: SlurmGrant | None) -> Iterator[tuple[str, int, str]]:
    quota = read_cpu_quota(root)
    if quota is not None:
        detail = f"{quota.file}: {quota.quota_us} us in {quota.period_us} us = {quota.cpus:g} CPUs"
        yield "quota", quota.num_whole_cpus, detail
    if grant is not None and grant.num_cpus is not None:
        yield "slurm", grant.num_cpus, f"{grant.cpus_detail} on {grant.host}"


def _read_memory(root: Path, grant: SlurmGrant | None, num_cpus: int) -> tuple[int, list[Limit]]:
    candidates: list[tuple[int, str]] = []
    limit = read_memory_limit(root)
    if limit is not None:
        candidates.append((limit.limit_bytes, limit.file))
    if grant is not None and grant.memory_bytes is not None:
        candidates.append((grant.memory_bytes, grant.memory_detail))
    total = read_memory_total(root)
    memory_bytes, limits = total, []
    for allowed, source in candidates:
        if not memory_bytes or allowed < memory_bytes:
            memory_bytes = allowed
            detail = f"{source}: {allowed / GIB:.1f} of {total / GIB:.1f} GiB"
            limits.append(Limit("memory", num_cpus, detail))
    return memory_bytes, limits
