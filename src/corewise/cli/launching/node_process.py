"""The process that a launch on several nodes starts on each node: its place, files and environment."""

import os
from dataclasses import replace

from corewise.cli.launching.settings import LaunchRequest
from corewise.cluster import ClusterError, resolve
from corewise.errors import UserError
from corewise.launch.rendezvous import NodeShare
from corewise.machine.allocation import read_allocation, restrict_allocation
from corewise.machine.machine_model import Allocation, Topology

# Variables of the launcher that describe its one process per node. An MPI library inside a rank would take them
# for a job of its own, and torch for its rank.
LAUNCHER_PREFIXES = (
    "OMPI_",
    "PMI_",
    "PMIX_",
    "HYDI_",
    "HYDRA_",
    "MPI_LOCAL",
    "MPIR_CVAR_CH3_INTERFACE",
    "TORCHELASTIC_",
)


def format_node_of(address: str, hosts: tuple[str, ...]) -> str:
    """Format the value of --node-of: the address of rank 0, and the hosts."""
    return f"{address}/{','.join(hosts)}"


def prepare_node(request: LaunchRequest) -> tuple[LaunchRequest, NodeShare]:
    """Return the request and the share of this node; removes the launcher's variables from this process.

    Raises:
        UserError: the launcher has started another number of processes.
    """
    address, _, listed = request.node_of.partition("/")
    hosts = tuple(listed.split(","))
    try:
        # Only the place matters here: a host that is listed twice runs two nodes, and the launcher counts it once.
        job = resolve(os.environ)
    except ClusterError as problem:
        raise UserError(f"the place of this node in the launch is unknown: {problem}") from None
    if job.num_ranks != len(hosts):
        raise UserError(f"the launcher started {job.num_ranks} processes for {len(hosts)} nodes; allow one on each")
    for name in list(os.environ):
        if name.startswith(LAUNCHER_PREFIXES):
            del os.environ[name]
    own = f"node-{job.rank}"
    log_dir = request.log_dir / own if request.log_dir is not None else None
    outcome = request.json.with_name(f"{request.json.stem}-{own}{request.json.suffix}") if request.json else None
    share = NodeShare(job.rank, len(hosts), address, hosts)
    # Several nodes always meet, unless the user asked for replicas.
    rendezvous = True if request.rendezvous is None else request.rendezvous
    return replace(request, log_dir=log_dir, json=outcome, rendezvous=rendezvous), share


def read_share(topology: Topology, node: NodeShare) -> Allocation:
    """Return the allocation of this node: a part of the machine's where a host is listed several times.

    Raises:
        UserError: the machine has fewer cores than nodes.
    """
    allocation = read_allocation(topology)
    same = [index for index, host in enumerate(node.hosts) if host == node.hosts[node.node_rank]]
    if len(same) == 1:
        return allocation
    try:
        return restrict_allocation(topology, allocation, same.index(node.node_rank), len(same))
    except ValueError as problem:
        raise UserError(f"{node.hosts[node.node_rank]} stands for {len(same)} nodes: {problem}") from None
