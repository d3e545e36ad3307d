"""Read what Slurm granted a job on this host from the job's environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from corewise.cluster.hostlist import expand_counts, expand_hostlist
from corewise.measured.sysfs import to_int

MIB = 1 << 20


@dataclass(frozen=True)
class SlurmGrant:
    """The part of this host that a Slurm job may use."""

    host: str
    num_cpus: int | None
    memory_bytes: int | None
    cpus_detail: str
    memory_detail: str


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
