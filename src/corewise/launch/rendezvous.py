"""Rendezvous of a launch's ranks: the variables that torchrun sets, and a reserved port."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

ADDRESS = "127.0.0.1"
# Code that checks whether torchrun started it reads TORCHELASTIC_RUN_ID. Rank 0 opens the store, so
# TORCHELASTIC_USE_AGENT_STORE is False.
_SINGLE_GROUP_VARIABLES = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_RUN_ID": "corewise",
}
RENDEZVOUS_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
    *_SINGLE_GROUP_VARIABLES,
)


@dataclass(frozen=True)
class NodeShare:
    """The part of a launch that runs on one node. Every node has the same number of ranks.

    Attributes:
        hosts: The hosts in the order of the node ranks; empty for a launch on one node.
        address: The address of rank 0, as every node reaches it.
    """

    node_rank: int = 0
    num_nodes: int = 1
    address: str = ADDRESS
    hosts: tuple[str, ...] = ()


ONE_NODE = NodeShare()


def build_rendezvous_variables(
    local_rank: int, num_local: int, port: int, node: NodeShare = ONE_NODE
) -> dict[str, str]:
    """Build the variables that code written for torchrun reads."""
    rank, num_ranks = node.node_rank * num_local + local_rank, node.num_nodes * num_local
    variables = {
        **dict.fromkeys(("RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(num_ranks)),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(num_local),
        "MASTER_ADDR": node.address,
        "MASTER_PORT": str(port),
        **_SINGLE_GROUP_VARIABLES,
        "GROUP_RANK": str(node.node_rank),
        "GROUP_WORLD_SIZE": str(node.num_nodes),
    }
    return {**variables, "COREWISE_HOSTS": ",".join(node.hosts)} if node.hosts else variables


def has_rendezvous(env: Mapping[str, str]) -> bool:
    """Return True when another launcher has already set the rendezvous of this process."""
    return all(env.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


@contextmanager
def reserve_port(wanted: int = 0) -> Iterator[int]:
    """Reserve a port and yield it; the kernel assigns it to no other process. OSError when `wanted` is taken.

    The socket is bound but does not listen. Rank 0 sets SO_REUSEADDR, as servers do, and can still bind the
    port. A port that was found free and released could be assigned to another process before rank 0 binds it.
    """
    with _open_bound_socket(wanted) as holder:
        yield int(holder.getsockname()[1])


def _open_bound_socket(port: int) -> "socket.socket":
    """Open a socket bound to all addresses of the machine, including IPv6 where available."""
    # A launch without rendezvous does not pay for this import.
    import socket

    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            holder = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            # The kernel has no IPv6.
            continue
        try:
            if family == socket.AF_INET6:
                holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, port))
            return holder
        except OSError:
            holder.close()
            if family == socket.AF_INET:
                raise
    raise OSError("no IPv4 or IPv6 socket can be created")
