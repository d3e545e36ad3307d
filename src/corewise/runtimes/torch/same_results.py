"""A module and the copy that was made of it: the one stays as it was, the other computes the same.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Dict, Iterator, List, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from corewise.runtimes.base import Infeasible


@contextlib.contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """Within it a module may keep values and count its calls; afterwards it is as it was."""
    attributes = [(vars(part), dict(vars(part))) for part in module.modules()]
    holders = [each for _, kept in attributes for each in kept.values() if isinstance(each, (dict, list))]
    contents = [(each, each.copy()) for each in holders]
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for held, before in contents:
            held.clear()
            held.update(before) if isinstance(held, dict) else held.extend(before)
        for current, kept in attributes:
            current.clear()
            current.update(kept)
        for buffer, value in values:
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def copied(inputs: Sequence[Any]) -> List[Any]:
    """The inputs for a run of its own: a module may write to what it is given."""
    return [each.clone() if isinstance(each, Tensor) else each for each in inputs]


def require_same(wanted: Any, got: Any) -> None:
    """Infeasible where two results differ by more than rounding, or cannot be compared."""
    one, other = list(_leaves(wanted)), list(_leaves(got))
    if any(isinstance(each, Tensor) and bool(each.isnan().any()) for each in one):
        raise Infeasible(
            "freezing full: the module gives NaN for the example inputs, so that results cannot be compared"
        )
    if len(one) != len(other) or not all(map(_are_close, one, other)):
        raise Infeasible("freezing full: torch.fx does not see all that this module does: its results differ")


def _leaves(result: Any) -> Iterator[Any]:
    for each in pytree.tree_leaves(result):
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            fields: Dict[str, Any] = {f.name: getattr(each, f.name) for f in dataclasses.fields(each)}
            yield from _leaves(fields)
        else:
            yield each


def _are_close(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    allowed = 1e-3 if torch.float32 == one.dtype == other.dtype else 0.1
    one, other = one.double(), other.double()
    is_masked = one.isinf() & (one == other)  # infinity less itself is no number
    one, other = (each.masked_fill(is_masked, 0.0) for each in (one, other))
    least = 1e-6 * math.sqrt(one.numel())  # what cancels leaves rounding alone
    return bool((one - other).norm() <= allowed * one.norm() + least)
