"""Whether what a trial needs fits: now, at another moment, or never on this machine.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

from corewise.runtimes.base import Infeasible, NotNow, RankContext
from corewise.runtimes.host_memory import free_host_bytes, whole_host_bytes


def host_share_bytes(context: RankContext, free_bytes: Optional[int] = None) -> int:
    """What this rank may take of its host's memory: an even share of what was free before any rank began.

    Ranks prepare side by side: one that came later would count what the others have taken as gone.
    """
    if context.num_ranks > 1 and context.host_free_bytes is not None:
        return context.host_free_bytes // context.num_ranks
    return (free_host_bytes() if free_bytes is None else free_bytes) // max(1, context.num_ranks)


def share_of_memory(arrays: Any, context: RankContext) -> int:
    """What this rank may take: ranks on one host share its memory, each has a GPU of its own."""
    free_bytes = int(arrays.free_bytes())
    return host_share_bytes(context, free_bytes) if arrays.device == "cpu" else free_bytes


def require_room(
    workload: Any, params: Mapping[str, Any], context: RankContext, free_bytes: int, factor: float = 1.0
) -> None:
    """Raises where a primitive takes more than so many bytes, with what would fit.

    The factor is the memory it takes here over what the workload says of it.
    """
    lacking = workload.lack_of_memory(params, free_bytes, factor=factor)
    if lacking is not None:
        needed_bytes = workload.needed_bytes(params, factor)
        raise no_room(lacking, needed_bytes, str(params["device"]), context.num_ranks)


def no_room(reason: str, needed_bytes: int, device: str = "cpu", num_ranks: int = 1) -> Infeasible:
    """The refusal of what is not free: for good where the whole host has less, else for this moment."""
    if device == "cpu" and needed_bytes * num_ranks > whole_host_bytes():
        return Infeasible(reason)
    return NotNow(reason)
