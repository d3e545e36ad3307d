"""What part of the machine we may use: affinity, cgroups, Slurm."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from corewise.machine.cgroups import read_cpu_quota, read_cpu_sets, read_memory_limit
from corewise.machine.model import Allocation, Limit, Topology
from corewise.machine.slurm import Grant, read_grant
from corewise.machine.sysfs import kib_to_bytes, parse_cpu_list, read_table, read_text
from corewise.machine.topology import format_cpu_list

GIB = 1 << 30


def read_allocation(
    topology: Topology,
    root: Path = Path("/"),
    env: Mapping[str, str] = os.environ,
    affinity: Collection[int] | None = None,
    hostname: str | None = None,
) -> Allocation:
    """The CPUs and memory that affinity, cgroups and Slurm leave us, with each limit that narrowed them."""
    grant = read_grant(env, hostname or read_hostname(root))
    cpus = {cpu.number for cpu in topology.cpus}
    limits: list[Limit] = []
    for source, allowed, detail in _masks(root, affinity):
        kept = cpus & allowed
        if kept and kept != cpus:  # a mask with none of our CPUs is damaged or of another machine
            cpus = kept
            limits.append(Limit(source, len(cpus), detail))
    for source, num_cpus, detail in _counts(root, grant):
        if num_cpus < len(cpus):
            cpus = set(choose_cpus(topology, cpus, num_cpus))
            limits.append(Limit(source, num_cpus, detail))
    memory_bytes, memory_limits = _memory(root, grant, len(cpus))
    kept_cpus = tuple(sorted(cpus))
    num_cores = topology.restricted(kept_cpus).num_cores
    return Allocation(kept_cpus, num_cores, memory_bytes, (*limits, *memory_limits))


def choose_cpus(topology: Topology, cpus: Collection[int], num_cpus: int) -> tuple[int, ...]:
    """The given number of CPUs: physical cores before SMT siblings, within as few NUMA nodes as will do."""
    threads: dict[tuple[int, int], list[int]] = {}  # (node, core) -> its CPUs
    sockets: dict[int, int] = {}
    for cpu in topology.restricted(tuple(cpus)).cpus:
        threads.setdefault((cpu.node, cpu.core), []).append(cpu.number)
        sockets.setdefault(cpu.node, cpu.socket)
    num_cores = {node: sum(1 for n, _ in threads if n == node) for node in sorted(sockets)}
    roomy = [node for node, num in num_cores.items() if num >= num_cpus]
    first = roomy[0] if roomy else max(num_cores, key=lambda node: num_cores[node])
    rank = {
        node: (node != first, sockets[node] != sockets[first], -num_cores[node], node) for node in num_cores
    }
    in_order = sorted(
        (sibling, rank[node], core, number)
        for (node, core), numbers in threads.items()
        for sibling, number in enumerate(numbers)
    )
    return tuple(sorted(number for *_, number in in_order[:num_cpus]))


def read_hostname(root: Path = Path("/")) -> str:
    """The host's name."""
    return read_text(root / "proc/sys/kernel/hostname") or os.uname().nodename


def read_memory_total(root: Path = Path("/")) -> int:
    """The machine's memory in bytes, 0 where it is not told."""
    return kib_to_bytes(read_table(root / "proc/meminfo").get("MemTotal")) or 0


def _masks(root: Path, affinity: Collection[int] | None) -> Iterator[tuple[str, set[int], str]]:
    # cpusets first: the kernel has already cut them out of the affinity mask, which would take the blame.
    for cpu_set in read_cpu_sets(root):
        yield "cpuset", set(cpu_set.cpus), f"{cpu_set.file} = {format_cpu_list(cpu_set.cpus)}"
    mask = set(affinity) if affinity is not None else _own_affinity(root)
    if mask is not None:
        yield "affinity", mask, f"affinity mask = {format_cpu_list(mask)}"


def _own_affinity(root: Path) -> set[int] | None:
    if root == Path("/"):
        return set(os.sched_getaffinity(0))
    try:
        return set(parse_cpu_list(read_table(root / "proc/self/status")["Cpus_allowed_list"]))
    except (KeyError, ValueError):
        return None


def _counts(root: Path, grant: Grant | None) -> Iterator[tuple[str, int, str]]:
    quota = read_cpu_quota(root)
    if quota is not None:
        detail = f"{quota.file}: {quota.quota_us} us in {quota.period_us} us = {quota.cpus:g} CPUs"
        yield "quota", quota.num_whole_cpus, detail
    if grant is not None and grant.num_cpus is not None:
        yield "slurm", grant.num_cpus, f"{grant.cpus_detail} on {grant.host}"


def _memory(root: Path, grant: Grant | None, num_cpus: int) -> tuple[int, list[Limit]]:
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
