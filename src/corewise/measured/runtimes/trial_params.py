"""Check the parameters of a trial, identically for every runtime.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Iterable

from corewise.measured.parameters import BatchScope, LearningRateRule, Mode, TrialParameters
from corewise.measured.runtimes.base import Infeasible, NoEffect
from corewise.measured.workloads.base import Workload


def compute_rank_batch(params: TrialParameters) -> int:
    """Compute how many samples one rank processes per step; raise Infeasible if the ranks do not divide the batch."""
    reason = explain_indivisible_batch(params)
    if reason:
        raise Infeasible(reason)
    return params.batch // _count_sharing(params)


def explain_indivisible_batch(params: TrialParameters) -> str:
    """Return why the processes cannot share the batch equally and what to do, or an empty text."""
    batch, num_sharing = params.batch, _count_sharing(params)
    if batch % num_sharing == 0:
        return ""
    scope = "global batch" if params.batch_scope == BatchScope.GLOBAL else "batch per node"
    below = batch - batch % num_sharing
    usable = " or ".join(str(size) for size in (below, below + num_sharing) if size)
    return (
        f"a {scope} of {batch} is not a multiple of {num_sharing} processes; "
        f"set batch: {usable}, or batch_scope: process"
    )


def _count_sharing(params: TrialParameters) -> int:
    return {BatchScope.PROCESS: 1, BatchScope.NODE: params.processes, BatchScope.GLOBAL: params.num_ranks}[
        params.batch_scope
    ]


def compute_learning_rate(params: TrialParameters, base: float) -> float:
    """Scale the learning rate as the rule says; raise NoEffect if the rule changes nothing.

    The linear rule multiplies by the samples of a step on all ranks over `batch` (Goyal et al. 2017,
    arXiv:1706.02677). With a global batch, the factor is 1.
    """
    if params.learning_rate_rule == LearningRateRule.CONSTANT:
        return base
    reason = explain_unused_rule(params)
    if reason:
        raise NoEffect(reason)
    return base * params.num_ranks / _count_sharing(params)


def explain_unused_rule(params: TrialParameters) -> str:
    """Return why the learning-rate rule has no effect, or an empty text."""
    reason = ""
    if params.mode != Mode.TRAIN:
        reason = "nothing is trained"
    elif params.num_ranks == 1:
        reason = "there is one process"
    elif params.num_ranks == _count_sharing(params):
        reason = "the samples of a step do not grow with the processes"
    return f"learning_rate_rule {params.learning_rate_rule} has no effect: {reason}" if reason else ""


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
