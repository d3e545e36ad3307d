"""Read what Slurm granted a job on this host from the job's environment."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from corewise.measured.sysfs import to_int

# This limit keeps a damaged node list from filling memory.
MAX_HOSTS = 1 << 18
MIB = 1 << 20


@dataclass(frozen=True)
class SlurmGrant:
    """The part of this host that a Slurm job may use."""

    host: str
    num_cpus: int | None
    memory_bytes: int | None
    cpus_detail: str
    memory_detail: str


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the host names of a Slurm list like `n[01-03,7],gpu5`, or raise ValueError."""
    hosts: list[str] = []
    for entry in _split_outside_brackets(text.strip()):
        pieces = re.split(r"\[([^\[\]]*)\]", entry)
        if any(bracket in piece for piece in pieces for bracket in "[]"):
            raise ValueError(f"not a host list: {text!r}")
        # Odd pieces were in brackets; the others are literal.
        choices = [_expand_ranges(p) if i % 2 else (p,) for i, p in enumerate(pieces)]
        if len(hosts) + math.prod(len(choice) for choice in choices) > MAX_HOSTS:
            raise ValueError(f"host list too long: {text[:40]!r}...")
        hosts += ["".join(parts) for parts in itertools.product(*choices)]
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """Return the count of each node of a Slurm list like `8(x2),4`, or raise ValueError."""
    counts: list[int] = []
    for entry in text.strip().split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", entry.strip())
        if match is None:
            raise ValueError(f"not a list of counts: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def read_grant(env: Mapping[str, str], hostname: str) -> SlurmGrant | None:
    """Return the job's grant on this host, or None outside a job and on hosts of other jobs."""
    try:
        hosts = expand_hostlist(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or "")
    except ValueError:
        return None
    index = _find_position(hosts, hostname)
    by_name = index is not None
    # A node's Slurm name may differ from its host name.
    if index is None:
        index = _find_position(hosts, env.get("SLURMD_NODENAME", ""))
    if index is None:
        return None
    num_cpus, cpus_detail = _read_granted_cpus(env, hosts, index, by_name)
    memory_bytes, memory_detail = _read_granted_memory(env, num_cpus)
    return SlurmGrant(hosts[index], num_cpus, memory_bytes, cpus_detail, memory_detail)


def _read_granted_cpus(
    env: Mapping[str, str], hosts: tuple[str, ...], index: int, by_name: bool
) -> tuple[int | None, str]:
    grants: list[tuple[int, str]] = []
    try:
        per_node = expand_counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
        if len(per_node) == len(hosts):
            grants.append((per_node[index], f"SLURM_JOB_CPUS_PER_NODE={env['SLURM_JOB_CPUS_PER_NODE']}"))
    except ValueError:
        pass
    # An environment that was copied from another node of the job describes that node.
    source_node = env.get("SLURMD_NODENAME", hosts[index])
    num_cpus = to_int(env.get("SLURM_CPUS_ON_NODE"))
    if num_cpus is not None and (not by_name or _strip_domain(source_node) == _strip_domain(hosts[index])):
        grants.append((num_cpus, f"SLURM_CPUS_ON_NODE={num_cpus}"))
    usable = [grant for grant in grants if grant[0] > 0]
    return min(usable, default=(None, ""))


def _read_granted_memory(env: Mapping[str, str], num_cpus: int | None) -> tuple[int | None, str]:
    per_node = to_int(env.get("SLURM_MEM_PER_NODE"))
    # A value of 0 asks for all of the node's memory.
    if per_node is not None and per_node > 0:
        return per_node * MIB, f"SLURM_MEM_PER_NODE={per_node} MiB"
    per_cpu = to_int(env.get("SLURM_MEM_PER_CPU"))
    if per_cpu is not None and per_cpu > 0 and num_cpus is not None:
        return per_cpu * num_cpus * MIB, f"SLURM_MEM_PER_CPU={per_cpu} MiB on {num_cpus} CPUs"
    return None, ""


def _find_position(hosts: tuple[str, ...], name: str) -> int | None:
    if not name:
        return None
    if name in hosts:
        return hosts.index(name)
    short = [_strip_domain(host) for host in hosts]
    return short.index(_strip_domain(name)) if _strip_domain(name) in short else None


def _strip_domain(host: str) -> str:
    return host.partition(".")[0]


def _split_outside_brackets(text: str) -> list[str]:
    entries = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+", text)
    return [entry.strip() for entry in entries if entry.strip()]


def _expand_ranges(text: str) -> tuple[str, ...]:
    names: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if match is None:
            raise ValueError(f"not a range of hosts: {text!r}")
        low, high, width = int(match[1]), int(match[2] or match[1]), len(match[1])
        if not low <= high <= low + MAX_HOSTS:
            raise ValueError(f"not a range of hosts: {text!r}")
        names += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return tuple(names)
