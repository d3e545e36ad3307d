"""Check that a transformed copy of a module computes the same, and restore the original's state.

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

from corewise.accelerate.unsupported import Unsupported


@contextlib.contextmanager
def restore_module(module: nn.Module) -> Iterator[None]:
    """Restore attributes, containers and buffers of a module after the block, whatever its calls change."""
    attributes = [(vars(part), dict(vars(part))) for part in module.modules()]
    containers = [each for _, saved in attributes for each in saved.values() if isinstance(each, (dict, list))]
    contents = [(each, each.copy()) for each in containers]
    values = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for container, before in contents:
            container.clear()
            container.update(before) if isinstance(container, dict) else container.extend(before)
        for current, saved in attributes:
            current.clear()
            current.update(saved)
        for buffer, value in values:
            if not torch.equal(buffer, value):
                buffer.copy_(value)


def copy_inputs(inputs: Sequence[Any]) -> List[Any]:
    """Copy the tensors among inputs, because a module may write to its inputs."""
    return [each.clone() if isinstance(each, Tensor) else each for each in inputs]


def require_equivalent(wanted: Any, got: Any) -> None:
    """Raise Unsupported if two results differ by more than rounding, or cannot be compared."""
    one, other = list(list_leaves(wanted)), list(list_leaves(got))
    if any(isinstance(each, Tensor) and bool(each.isnan().any()) for each in one):
        raise Unsupported(
            "freezing full: the module returns NaN for the example inputs, so results cannot be compared; "
            "pass other inputs"
        )
    if len(one) != len(other) or not all(map(_is_close, one, other)):
        raise Unsupported(
            "freezing full: the results of the frozen copy differ: torch.fx did not capture all that this module does"
        )


def list_leaves(result: Any) -> Iterator[Any]:
    """List the values in nested results, including those of dataclasses."""
    for each in pytree.tree_leaves(result):
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            fields: Dict[str, Any] = {f.name: getattr(each, f.name) for f in dataclasses.fields(each)}
            yield from list_leaves(fields)
        else:
            yield each


def _is_close(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    allowed = 1e-3 if torch.float32 == one.dtype == other.dtype else 0.1
    one, other = one.double(), other.double()
    # The difference of equal infinities is NaN.
    is_masked = one.isinf() & (one == other)
    one, other = (each.masked_fill(is_masked, 0.0) for each in (one, other))
    # Results that cancel to almost nothing consist of rounding errors.
    floor = 1e-6 * math.sqrt(one.numel())
    return bool((one - other).norm() <= allowed * one.norm() + floor)
