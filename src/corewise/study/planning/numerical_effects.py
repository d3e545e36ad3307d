"""Classify how each setting may change the numbers that a workload computes, with the reason.

The tuner varies settings of the first two classes freely, and others only with permission.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from corewise.errors import suggest_nearest
from corewise.measured.workloads.base import Traits
from corewise.study.axes import AXES


class NumericalEffect(StrEnum):
    """The effect of a setting on the computed numbers, from none to another computation."""

    SAME_NUMBERS = "same-numbers"
    SAME_PRECISION = "same-precision"
    BATCH_STATISTICS = "batch-statistics"
    LOWER_PRECISION = "lower-precision"
    BATCH = "batch"


# Effects that need no permission.
FREE_EFFECTS = (NumericalEffect.SAME_NUMBERS, NumericalEffect.SAME_PRECISION)


@dataclass(frozen=True)
class EffectJudgement:
    """The effect of a setting, and the reason in one line."""

    effect: NumericalEffect
    reason: str


_NUMBERS, _PRECISION = NumericalEffect.SAME_NUMBERS, NumericalEffect.SAME_PRECISION
_STATISTICS, _LOWER, _BATCH = (NumericalEffect.BATCH_STATISTICS, NumericalEffect.LOWER_PRECISION, NumericalEffect.BATCH)

# The effect of each axis. For `nodes` and `processes` in training, `judge_setting` asks the workload.
AXIS_EFFECTS: Mapping[str, EffectJudgement] = {
    "device": EffectJudgement(_LOWER, "a GPU convolves float32 in TF32 by default"),
    "nodes": EffectJudgement(_NUMBERS, "replicas infer independently of each other"),
    "processes": EffectJudgement(_NUMBERS, "replicas infer independently of each other"),
    "threads": EffectJudgement(_PRECISION, "threads divide sums, which changes rounding"),
    "interop_threads": EffectJudgement(_PRECISION, "each branch computes with fewer threads"),
    "batch": EffectJudgement(_BATCH, "a step processes other samples"),
    "batch_scope": EffectJudgement(_BATCH, "a step processes other samples"),
    "collectives": EffectJudgement(_PRECISION, "gradients are summed in another order"),
    "learning_rate_rule": EffectJudgement(_BATCH, "weights are updated with another learning rate"),
    "dtype": EffectJudgement(_LOWER, "fewer bits"),
    "memory_format": EffectJudgement(_PRECISION, "other kernels sum in another order"),
    "execution": EffectJudgement(
        _PRECISION, "fused kernels, fast kernels and other thread counts sum in another order"
    ),
    "freezing": EffectJudgement(_PRECISION, "weights are scaled once instead of every product"),
    "math": EffectJudgement(_PRECISION, "other kernels sum in another order"),
    "isa": EffectJudgement(_PRECISION, "wider vectors sum in another order"),
    "float32_precision": EffectJudgement(_LOWER, "float32 products are computed with fewer bits"),
    "denormals": EffectJudgement(_LOWER, "denormal numbers are flushed to zero"),
    "optimizer": EffectJudgement(_BATCH, "another rule updates the weights"),
    "allocator": EffectJudgement(_NUMBERS, "it changes where memory is allocated, not its content"),
    "huge_pages": EffectJudgement(_NUMBERS, "they change how memory is mapped, not its content"),
    "openmp": EffectJudgement(_NUMBERS, "it only starts the computing threads"),
    "wait_policy": EffectJudgement(_NUMBERS, "it only changes how idle threads wait"),
    "data": EffectJudgement(_BATCH, "a step processes other samples"),
    "loader_workers": EffectJudgement(_NUMBERS, "they load the same samples"),
    "pinned_memory": EffectJudgement(_NUMBERS, "it changes where samples wait for the GPU"),
    "placement": EffectJudgement(_NUMBERS, "it changes where ranks run"),
    "smt": EffectJudgement(_NUMBERS, "it changes where threads run"),
    "memory_policy": EffectJudgement(_NUMBERS, "it changes where memory is allocated"),
    "bind": EffectJudgement(_NUMBERS, "it changes where threads run"),
    "reserved_cores": EffectJudgement(_NUMBERS, "it changes where ranks run"),
    "oversubscribe": EffectJudgement(_NUMBERS, "it changes where threads run"),
}
# Values with another effect than their axis.
VALUE_EFFECTS: Mapping[tuple[str, str], EffectJudgement] = {
    ("dtype", "float64"): EffectJudgement(_PRECISION, "more bits than float32, not fewer")
}
ARGUMENT = EffectJudgement(_BATCH, "a workload parameter changes the computation")


def judge_setting(name: str, value: Any, *, mode: str = "infer", traits: Traits | None = None) -> EffectJudgement:
    """Return the effect of a setting; the default of an axis changes nothing.

    `traits` are those of the workload; for unknown ones the worse case is assumed.
    """
    if name.startswith("args."):
        return ARGUMENT
    if name not in AXES:
        raise ValueError(f"unknown axis {name!r}; {suggest_nearest(name, AXES)}")
    if value == AXES[name].default:
        return EffectJudgement(_NUMBERS, "the default")
    if name in ("nodes", "processes") and mode == "train":
        return _judge_data_parallel(traits or Traits())
    return VALUE_EFFECTS.get((name, str(value)), AXIS_EFFECTS[name])


def _judge_data_parallel(traits: Traits) -> EffectJudgement:
    """Return the effect of data-parallel training at a fixed global batch."""
    if traits.depends_on_batch is False:
        return EffectJudgement(_PRECISION, "gradients are summed in another order")
    if traits.has_batch_norm:
        return EffectJudgement(_STATISTICS, "batch normalisation sees only the samples of one process")
    if traits.has_dropout:
        return EffectJudgement(_STATISTICS, "dropout draws other zeros in each process")
    return EffectJudgement(_STATISTICS, "it is unknown whether the model has batch normalisation or dropout")
