"""What Slurm granted a job on this host, from the job's environment."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from corewise.machine.sysfs import to_int

MAX_HOSTS = 1 << 18  # keeps a damaged node list from filling memory
MIB = 1 << 20


@dataclass(frozen=True)
class Grant:
    """The part of this host that a Slurm job was given."""

    host: str
    num_cpus: int | None
    memory_bytes: int | None
    cpus_detail: str
    memory_detail: str


def expand_hostlist(text: str) -> tuple[str, ...]:
    """The host names of a Slurm list such as `n[01-03,7],gpu5`, in order; ValueError if malformed."""
    hosts: list[str] = []
    for word in _split_outside_brackets(text.strip()):
        pieces = re.split(r"\[([^\[\]]*)\]", word)
        if any(bracket in piece for piece in pieces for bracket in "[]"):
            raise ValueError(f"not a host list: {text!r}")
        # Odd pieces stood in brackets, the others are literal.
        choices = [_expand_ranges(p) if i % 2 else (p,) for i, p in enumerate(pieces)]
        if len(hosts) + math.prod(len(choice) for choice in choices) > MAX_HOSTS:
            raise ValueError(f"host list too long: {text[:40]!r}...")
        hosts += ["".join(parts) for parts in itertools.product(*choices)]
    return tuple(hosts)


def expand_counts(text: str) -> tuple[int, ...]:
    """The count of each node of a Slurm list such as `8(x2),4`; ValueError if malformed."""
    counts: list[int] = []
    for word in text.strip().split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]{1,6})\))?", word.strip())
        if match is None:
            raise ValueError(f"not a list of counts: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def read_grant(env: Mapping[str, str], hostname: str) -> Grant | None:
    """What the job granted on this host, or None outside a job or on a host that is not the job's."""
    try:
        hosts = expand_hostlist(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or "")
    except ValueError:
        return None
    index = _position(hosts, hostname)
    by_name = index is not None
    if index is None:  # a node's Slurm name may differ from its host name
        index = _position(hosts, env.get("SLURMD_NODENAME", ""))
    if index is None:
        return None
    num_cpus, cpus_detail = _granted_cpus(env, hosts, index, by_name)
    memory_bytes, memory_detail = _granted_memory(env, num_cpus)
    return Grant(hosts[index], num_cpus, memory_bytes, cpus_detail, memory_detail)


def _granted_cpus(
    env: Mapping[str, str], hosts: tuple[str, ...], index: int, by_name: bool
) -> tuple[int | None, str]:
    grants: list[tuple[int, str]] = []
    try:
        per_node = expand_counts(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
        if len(per_node) == len(hosts):
            grants.append((per_node[index], f"SLURM_JOB_CPUS_PER_NODE={env['SLURM_JOB_CPUS_PER_NODE']}"))
    except ValueError:
        pass
    # An environment carried over from another node of the job speaks of that node.
    told_by = env.get("SLURMD_NODENAME", hosts[index])
    here = to_int(env.get("SLURM_CPUS_ON_NODE"))
    if here is not None and (not by_name or _short(told_by) == _short(hosts[index])):
        grants.append((here, f"SLURM_CPUS_ON_NODE={here}"))
    usable = [grant for grant in grants if grant[0] > 0]
    return min(usable, default=(None, ""))


def _granted_memory(env: Mapping[str, str], num_cpus: int | None) -> tuple[int | None, str]:
    per_node = to_int(env.get("SLURM_MEM_PER_NODE"))
    if per_node is not None and per_node > 0:  # 0 asks for all the node's memory
        return per_node * MIB, f"SLURM_MEM_PER_NODE={per_node} MiB"
    per_cpu = to_int(env.get("SLURM_MEM_PER_CPU"))
    if per_cpu is not None and per_cpu > 0 and num_cpus is not None:
        return per_cpu * num_cpus * MIB, f"SLURM_MEM_PER_CPU={per_cpu} MiB on {num_cpus} CPUs"
    return None, ""


def _position(hosts: tuple[str, ...], name: str) -> int | None:
    if not name:
        return None
    if name in hosts:
        return hosts.index(name)
    short = [_short(host) for host in hosts]
    return short.index(_short(name)) if _short(name) in short else None


def _short(host: str) -> str:
    return host.partition(".")[0]


def _split_outside_brackets(text: str) -> list[str]:
    words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\]|[\[\]])+", text)
    return [word.strip() for word in words if word.strip()]


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
