"""How the ranks of a launch find each other: the variables torchrun sets, and a port kept free for them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

ADDRESS = "127.0.0.1"
# Code that asks whether torchrun started it looks for the last of these.
_ALONE_IN_ITS_GROUP = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 opens the store itself
    "TORCHELASTIC_RUN_ID": "corewise",
}
RENDEZVOUS_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
    *_ALONE_IN_ITS_GROUP,
)


def rendezvous_variables(rank: int, num_ranks: int, port: int) -> dict[str, str]:
    """What code written for torchrun reads, for one node."""
    mine = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    all_of_us = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(num_ranks))
    return {**mine, **all_of_us, "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port), **_ALONE_IN_ITS_GROUP}


def has_rendezvous(env: Mapping[str, str]) -> bool:
    """Whether another launcher has told this process its place already."""
    return all(env.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


@contextmanager
def held_port(wanted: int = 0) -> Iterator[int]:
    """A port that the kernel gives to nobody by itself while it is held; OSError when `wanted` is taken.

    The socket is bound and does not listen, so that rank 0, which sets SO_REUSEADDR as servers do, can still
    take the port. A port found free and let go could be given away before rank 0 asks for it.
    """
    with _bound(wanted) as holder:
        yield int(holder.getsockname()[1])


def _bound(port: int) -> "socket.socket":
    """A socket on every address of the machine, IPv6 included where there is any."""
    import socket  # here: a launch without rendezvous need not wait for it

    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            holder = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a kernel without IPv6
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
    raise OSError("no kind of socket can be made")
