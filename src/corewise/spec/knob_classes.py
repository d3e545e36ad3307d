"""What each setting may change of the numbers a workload computes: one class for each, with the reason.

A tuner varies the first two classes freely and the others only where it is allowed to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from corewise.spec.axes import AXES
from corewise.spec.errors import nearest
from corewise.workloads.base import Traits


class KnobClass(StrEnum):
    """From what changes nothing to what changes the question."""

    SAME_NUMBERS = "same-numbers"
    SAME_PRECISION = "same-precision"
    BATCH_STATISTICS = "batch-statistics"
    LOWER_PRECISION = "lower-precision"
    BATCH = "batch"


FREE = (KnobClass.SAME_NUMBERS, KnobClass.SAME_PRECISION)  # need no permission


@dataclass(frozen=True)
class Judgement:
    """The class of a setting, and why in one line."""

    knob_class: KnobClass
    why: str


_NUMBERS, _PRECISION = KnobClass.SAME_NUMBERS, KnobClass.SAME_PRECISION
_STATISTICS, _LOWER, _BATCH = KnobClass.BATCH_STATISTICS, KnobClass.LOWER_PRECISION, KnobClass.BATCH

# The class of each axis; `processes` in training is judged by its workload (`judge`).
AXIS_CLASSES: Mapping[str, Judgement] = {
    "device": Judgement(_LOWER, "a GPU convolves float32 in TF32 by default"),
    "processes": Judgement(_NUMBERS, "replicas that infer know nothing of each other"),
    "threads": Judgement(_PRECISION, "sums are divided among threads and round otherwise"),
    "interop_threads": Judgement(_PRECISION, "each branch computes with fewer threads"),
    "batch": Judgement(_BATCH, "a step works on other samples"),
    "batch_scope": Judgement(_BATCH, "a step works on other samples"),
    "dtype": Judgement(_LOWER, "fewer digits"),
    "memory_format": Judgement(_PRECISION, "other kernels add up in another order"),
    "execution": Judgement(_PRECISION, "fused kernels, our own, and other widths add up in another order"),
    "freezing": Judgement(_PRECISION, "weights are scaled once instead of their products"),
    "math": Judgement(_PRECISION, "other kernels add up in another order"),
    "float32_precision": Judgement(_LOWER, "products of float32 are computed from fewer digits"),
    "denormals": Judgement(_LOWER, "numbers near zero become zero"),
    "allocator": Judgement(_NUMBERS, "it decides where memory lies, not what is in it"),
    "huge_pages": Judgement(_NUMBERS, "they decide how memory is mapped, not what is in it"),
    "openmp": Judgement(_NUMBERS, "it starts the threads that compute"),
    "wait_policy": Judgement(_NUMBERS, "it says what threads do that have nothing to do"),
    "data": Judgement(_BATCH, "a step works on other samples"),
    "loader_workers": Judgement(_NUMBERS, "they bring the same samples"),
    "pinned_memory": Judgement(_NUMBERS, "it says where samples wait for the GPU"),
    "placement": Judgement(_NUMBERS, "it says where ranks run"),
    "smt": Judgement(_NUMBERS, "it says where threads run"),
    "memory_policy": Judgement(_NUMBERS, "it says where memory lies"),
    "bind": Judgement(_NUMBERS, "it says where threads run"),
    "reserved_cores": Judgement(_NUMBERS, "it says where ranks do not run"),
    "oversubscribe": Judgement(_NUMBERS, "it says where threads run"),
}
# Values that are of another class than their axis.
VALUE_CLASSES: Mapping[tuple[str, str], Judgement] = {
    ("dtype", "float64"): Judgement(_PRECISION, "more digits than float32, not fewer"),
}
ARGUMENT = Judgement(_BATCH, "a parameter of the workload makes it another computation")


def judge(name: str, value: Any, *, mode: str = "infer", traits: Traits | None = None) -> Judgement:
    """The class of a setting; its axis' default is of the first class, for it changes nothing.

    `traits` are the workload's; what is not known of them is taken for the worse.
    """
    if name.startswith("args."):
        return ARGUMENT
    if name not in AXES:
        raise ValueError(f"unknown axis {name!r}; {nearest(name, AXES)}")
    if value == AXES[name].default:
        return Judgement(_NUMBERS, "the default")
    if name == "processes" and mode == "train":
        return _data_parallel(traits or Traits())
    return VALUE_CLASSES.get((name, str(value)), AXIS_CLASSES[name])


def _data_parallel(traits: Traits) -> Judgement:
    """The class of processes that train together at a fixed global batch."""
    if traits.depends_on_batch is False:
        return Judgement(_PRECISION, "gradients are added up in another order")
    if traits.has_batch_norm:
        return Judgement(_STATISTICS, "batch normalisation sees the samples of one process only")
    if traits.has_dropout:
        return Judgement(_STATISTICS, "dropout draws other zeros in each process")
    return Judgement(_STATISTICS, "whether it has batch normalisation or dropout is not known")
