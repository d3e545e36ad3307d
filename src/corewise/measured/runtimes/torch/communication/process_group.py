"""Start torch's process group among the ranks of a trial, on one node or on several.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import datetime
import fcntl
import os
import socket
import struct
from typing import Any

import torch.distributed as dist

from corewise.measured.runtimes.base import Infeasible, RankContext

RENDEZVOUS_FILE = "process-group"
# The request that reads the IPv4 address of a network interface, from linux/sockios.h.
SIOCGIFADDR = 0x8915
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def start_process_group(context: RankContext, backend: str) -> None:
    """Start torch's default process group; a user's choice of the network interface is kept.

    Args:
        context: the rank and how it reaches the others.
        backend: gloo or nccl.

    Raises:
        Infeasible: this build of torch lacks the backend.
    """
    if not dist.is_available() or not getattr(dist, f"is_{backend}_available")():
        raise Infeasible(f"this build of torch has no {backend}")
    interface = "lo" if context.num_nodes == 1 else find_interface(context.address)
    for name in INTERFACE_VARIABLES:
        os.environ.setdefault(name, interface)
    limit = datetime.timedelta(seconds=context.time_limit_s or 1800.0)
    store = _open_store(context, limit)
    dist.init_process_group(backend, store=store, rank=context.rank, world_size=context.num_ranks, timeout=limit)


def _open_store(context: RankContext, limit: datetime.timedelta) -> Any:
    if context.num_nodes == 1:
        path = os.path.join(context.rendezvous, RENDEZVOUS_FILE)
        return dist.FileStore(path, context.num_ranks)  # type: ignore[attr-defined]
    return dist.TCPStore(  # type: ignore[attr-defined]
        context.address, context.port, context.num_ranks, is_master=context.rank == 0, timeout=limit
    )


def find_interface(address: str) -> str:
    """Return the name of the network interface through which this host reaches an address.

    Raises:
        Infeasible: the address is not reachable, or no interface has the local address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only chooses a route.
            probe.connect((address, 9))
        except OSError as problem:
            raise Infeasible(f"this node has no route to the first node at {address}: {problem}") from problem
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _read_address(probe, name) == own:
                return name
    raise Infeasible(f"no network interface of this node has the address {own}; set GLOO_SOCKET_IFNAME")


def _read_address(opened: socket.socket, interface: str) -> str:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(opened.fileno(), SIOCGIFADDR, request)
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])
