"""Start torch's process group among the ranks of a trial, on one node or on several.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch.distributed as dist

from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.network_interface import find_interface

RENDEZVOUS_FILE = "process-group"
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
