"""Decide whether the memory a trial needs is available now, later, or never on this machine.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Optional

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, NotNow, RankContext
from corewise.measured.runtimes.devices.host_memory import read_free_host_bytes, read_total_host_bytes


def compute_host_share_bytes(context: RankContext, free_bytes: Optional[int] = None) -> int:
    """Return an even share of the host memory that was free before any rank started.

    Ranks prepare concurrently, so a later rank would otherwise see less free memory than an earlier one.
    """
    num_sharing = max(1, context.num_local_ranks)
    if num_sharing > 1 and context.host_free_bytes is not None:
        return context.host_free_bytes // num_sharing
    return (read_free_host_bytes() if free_bytes is None else free_bytes) // num_sharing


def compute_memory_share(arrays: Any, context: RankContext) -> int:
    """Return the memory for this rank: ranks on one host share its memory, but each has one GPU."""
    free_bytes = int(arrays.free_bytes())
    return compute_host_share_bytes(context, free_bytes) if arrays.device == "cpu" else free_bytes


def require_room(
    workload: Any, params: TrialParameters, context: RankContext, free_bytes: int, factor: float = 1.0
) -> None:
    """Raise Infeasible if a primitive needs more than the free bytes, and say what would fit.

    Args:
        factor: memory needed here over the estimate of the workload.
    """
    lacking = workload.explain_memory_shortage(params, free_bytes, factor=factor)
    if lacking is not None:
        needed_bytes = workload.estimate_memory_bytes(params, factor)
        raise build_memory_refusal(lacking, needed_bytes, params.device.value, context.num_local_ranks)


def build_memory_refusal(reason: str, needed_bytes: int, device: str = "cpu", num_ranks: int = 1) -> Infeasible:
    """Build the exception for missing memory: Infeasible if the host has too little in total, else NotNow."""
    if device == "cpu" and needed_bytes * num_ranks > read_total_host_bytes():
        return Infeasible(reason)
    return NotNow(reason)
