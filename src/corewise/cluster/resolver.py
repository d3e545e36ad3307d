"""Resolve the variables of Slurm, Open MPI, PMI (MPICH, Intel MPI) or torchrun into one description.

Launchers are often nested: torchrun inside a Slurm step, mpirun inside a Slurm job. The innermost one started
this process, so it is asked first.

Travels to the nodes: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence

from corewise.cluster.description import ClusterDescription, ClusterError
from corewise.cluster.hostlist import expand_counts, expand_hostlist

# The variable in which `corewise launch --nodes` names the hosts, separated by commas.
HOSTS_VARIABLE = "COREWISE_HOSTS"
# A host name or address, as it may stand in a list: no blanks, no shell characters, no leading dash.
HOST_PATTERN = re.compile(r"[A-Za-z0-9_:%.][A-Za-z0-9_:%.-]*")
# The variables of rank, number of ranks, local rank and number of local ranks.
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPENMPI = (
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
)
_PMI = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
# Slurm's lists of the GPUs of a task, a step and a job on this host, most specific first.
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")


def resolve(env: Mapping[str, str] | None = None, hosts: Sequence[str] | None = None) -> ClusterDescription:
    """Describe the job that this process belongs to.

    Args:
        env: The environment to read; by default that of this process.
        hosts: The hosts in the order of the ranks, where the launcher does not name them (mpirun).

    Returns:
        The description; see `ClusterDescription`.

    Raises:
        ClusterError: no launcher started this process, or its variables contradict each other.

    Example:
        >>> job = resolve({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        ...                "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, hosts=["n1"])
        >>> job.rank, job.num_ranks, job.hosts
        (1, 2, ('n1',))
    """
    env = os.environ if env is None else env
    given = tuple(hosts) if hosts is not None else None
    for name in given or ():
        check_host(name)
    if all(env.get(name) for name in _TORCHRUN[:3]):
        return _resolve_torchrun(env, given)
    for source, names in (("openmpi", _OPENMPI), ("pmi", _PMI)):
        if env.get(names[0]) and env.get(names[1]):
            # Slurm sets PMI variables too, and names the hosts.
            if env.get(names[0]) == env.get("SLURM_PROCID") and env.get(names[1]) == env.get("SLURM_STEP_NUM_TASKS"):
                return _resolve_slurm(env, given)
            return _resolve_mpi(env, source, names, given)
    if env.get("SLURM_PROCID"):
        return _resolve_slurm(env, given)
    raise ClusterError(
        "no launcher started this process: none of SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK or RANK with "
        "WORLD_SIZE and LOCAL_RANK is set; start it with srun, mpirun, torchrun or `corewise launch --nodes`"
    )


def check_host(name: str) -> str:
    """Return the host name, or raise a ClusterError when it cannot be one."""
    if not HOST_PATTERN.fullmatch(name):
        raise ClusterError(f"not a host name: {name!r}")
    return name


def _resolve_slurm(env: Mapping[str, str], given: tuple[str, ...] | None) -> ClusterDescription:
    rank = _read_count(env, "SLURM_PROCID")
    list_name = "SLURM_STEP_NODELIST" if env.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    counts_name = "SLURM_STEP_TASKS_PER_NODE" if env.get("SLURM_STEP_TASKS_PER_NODE") else "SLURM_TASKS_PER_NODE"
    try:
        hosts = given or expand_hostlist(env.get(list_name, ""))
        counts = expand_counts(env.get(counts_name, ""))
    except ValueError as problem:
        raise ClusterError(f"{list_name} or {counts_name} cannot be read: {problem}") from None
    for host in hosts:
        check_host(host)
    if len(hosts) != len(counts) or not hosts or min(counts) < 1:
        raise ClusterError(
            f"{counts_name}={env.get(counts_name)} counts the tasks of {len(counts)} hosts, and {list_name}="
            f"{env.get(list_name)} names {len(hosts)}"
        )
    stated = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS") or str(sum(counts))
    if stated != str(sum(counts)):
        raise ClusterError(
            f"Slurm states {stated} tasks, and {counts_name}={env[counts_name]} adds up to {sum(counts)}"
        )
    node, local_rank = _locate_slurm_rank(env, rank, counts)
    job_id = ".".join(env[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if env.get(name))
    gpus, own = _read_gpus(env, has_slurm_task_gpus=bool(env.get("SLURM_GPUS_PER_TASK")))
    # Slurm does not always say that it bound GPUs to tasks. A task then sees fewer than its step has on this node.
    own = own or 0 < len(gpus) < _read_count(env, "SLURM_GPUS_ON_NODE", default=0)
    return ClusterDescription("slurm", tuple(hosts), counts, rank, local_rank, node, gpus, own, job_id)


def _locate_slurm_rank(env: Mapping[str, str], rank: int, counts: tuple[int, ...]) -> tuple[int, int]:
    """Return node and local rank; both must agree with the block distribution that all frameworks assume."""
    node, local_rank = _locate_rank(rank, counts, "SLURM_PROCID")
    for name, expected in (("SLURM_NODEID", node), ("SLURM_LOCALID", local_rank)):
        if env.get(name) and _read_count(env, name) != expected:
            raise ClusterError(
                f"{name}={env[name]}, and rank {rank} of ranks dealt out in blocks has {expected}; start the step "
                "with srun --distribution=block"
            )
    return node, local_rank


def _resolve_mpi(
    env: Mapping[str, str], source: str, names: Sequence[str], given: tuple[str, ...] | None
) -> ClusterDescription:
    rank, num_ranks = _read_count(env, names[0]), _read_count(env, names[1], least=1)
    num_local = _read_count(env, names[3], least=1, default=num_ranks)
    local_rank = _read_count(env, names[2], default=rank % num_local)
    counts = _split_ranks(num_ranks, num_local, names[3])
    known = given or _find_hosts(env, len(counts))
    if len(known) != len(counts):
        raise ClusterError(f"{num_ranks} ranks, {num_local} on each host, need {len(counts)} hosts, not {len(known)}")
    node = _check_place(rank, local_rank, counts, names)
    job_id = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid") or env.get("SLURM_JOB_ID") or ""
    gpus, own = _read_gpus(env)
    return ClusterDescription(source, known, counts, rank, local_rank, node, gpus, own, job_id)


def _resolve_torchrun(env: Mapping[str, str], given: tuple[str, ...] | None) -> ClusterDescription:
    rank, num_ranks = _read_count(env, "RANK"), _read_count(env, "WORLD_SIZE", least=1)
    local_rank = _read_count(env, "LOCAL_RANK")
    num_local = _read_count(env, "LOCAL_WORLD_SIZE", least=1, default=num_ranks)
    counts = _split_ranks(num_ranks, num_local, "LOCAL_WORLD_SIZE")
    listed = tuple(host for host in env.get(HOSTS_VARIABLE, "").split(",") if host)
    known = given or listed or _find_hosts(env, len(counts))
    if len(known) != len(counts):
        raise ClusterError(f"{num_ranks} ranks, {num_local} on each host, need {len(counts)} hosts, not {len(known)}")
    # Rank 0 opens the store, so its address is also the name of the first host where nothing else names it.
    if env.get("MASTER_ADDR") and given is None and (not listed or not known[0]):
        known = (check_host(env["MASTER_ADDR"]), *known[1:])
    node = _check_place(rank, local_rank, counts, _TORCHRUN)
    if env.get("GROUP_RANK") and _read_count(env, "GROUP_RANK") != node:
        raise ClusterError(f"GROUP_RANK={env['GROUP_RANK']}, and RANK={rank} is on node {node}")
    port = _read_count(env, "MASTER_PORT", least=1) if env.get("MASTER_PORT") else None
    gpus, own = _read_gpus(env)
    job_id = env.get("TORCHELASTIC_RUN_ID", "")
    return ClusterDescription("torchrun", known, counts, rank, local_rank, node, gpus, own, job_id, port)


def _find_hosts(env: Mapping[str, str], num_hosts: int) -> tuple[str, ...]:
    """Return this host for a job on one node, Slurm's hosts inside a job, and else names that are empty."""
    if num_hosts == 1:
        return (socket.gethostname(),)
    try:
        hosts = expand_hostlist(env.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        hosts = ()
    return hosts if len(hosts) == num_hosts else ("",) * num_hosts


def _split_ranks(num_ranks: int, num_local: int, name: str) -> tuple[int, ...]:
    if num_ranks % num_local:
        raise ClusterError(
            f"{num_ranks} ranks do not divide into hosts of {num_local} ({name}); use the same number on every host"
        )
    return (num_local,) * (num_ranks // num_local)


def _check_place(rank: int, local_rank: int, counts: tuple[int, ...], names: Sequence[str]) -> int:
    """Return the node of the rank; raise a ClusterError when ranks are not dealt out host by host."""
    node, expected = _locate_rank(rank, counts, names[0])
    if local_rank != expected:
        raise ClusterError(
            f"{names[0]}={rank} and {names[2]}={local_rank} contradict ranks in blocks of {counts[0]}; start the ranks "
            "host by host (mpirun --map-by slot)"
        )
    return node


def _locate_rank(rank: int, counts: tuple[int, ...], name: str) -> tuple[int, int]:
    left = rank
    for node, count in enumerate(counts):
        if left < count:
            return node, left
        left -= count
    raise ClusterError(f"{name}={rank} is not below the number of ranks, {sum(counts)}")


def _read_gpus(env: Mapping[str, str], *, has_slurm_task_gpus: bool = False) -> tuple[tuple[str, ...], bool]:
    for name in _GPU_VARIABLES:
        if env.get(name):
            gpus = tuple(part.strip() for part in env[name].split(",") if part.strip())
            return gpus, has_slurm_task_gpus and name == "CUDA_VISIBLE_DEVICES"
    return (), False


def _read_count(env: Mapping[str, str], name: str, *, least: int = 0, default: int | None = None) -> int:
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise ClusterError(f"{name}={text!r} is not a number from {least} on")
    return int(text)
