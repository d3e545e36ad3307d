"""Check the parameters of a trial, identically for every runtime.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Iterable

from corewise.measured.parameters import BatchScope, TrialParameters
from corewise.measured.runtimes.base import Infeasible, NoEffect
from corewise.measured.workloads.base import Workload


def compute_rank_batch(params: TrialParameters) -> int:
    """Compute how many samples one rank processes per step; raise Infeasible if there are none."""
    batch = params.batch
    if params.batch_scope == BatchScope.PROCESS:
        return batch
    num_sharing = params.processes if params.batch_scope == BatchScope.NODE else params.num_ranks
    rank_batch = batch // num_sharing
    if rank_batch < 1:
        raise Infeasible(f"a {params.batch_scope} batch of {batch} is too small for {num_sharing} processes")
    return rank_batch


def require_point(workload: Workload, params: TrialParameters) -> None:
    """Raise Infeasible if the workload lacks the mode or rejects the arguments."""
    if params.mode not in workload.modes:
        raise Infeasible(f"{workload.name} has no mode {params.mode.value!r}; it has {', '.join(workload.modes)}")
    try:
        workload.count_work(params.mode.value, params.arguments)
    except ValueError as problem:
        raise Infeasible(str(problem)) from problem


def require_defaults(params: TrialParameters, names: Iterable[str], reason: str) -> None:
    """Raise NoEffect if one of the named parameters differs from its default."""
    for name in names:
        if not params.is_default(name):
            raise NoEffect(f"{name} {getattr(params, name)} has no effect: {reason}")
