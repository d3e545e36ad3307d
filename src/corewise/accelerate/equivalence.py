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

# Objects nested deeper are compared by identity.
_MAX_DEPTH = 8


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


def require_equivalent(wanted: Any, got: Any, dtype: torch.dtype = torch.float32) -> None:
    """Raise Unsupported if two results, computed in this type, differ by more than rounding or hold NaN."""
    require_comparable(wanted)
    if is_equivalent(wanted, got, dtype):
        return
    if dtype != torch.float32:
        raise Unsupported(
            "freezing full: the results of the frozen copy differ by more than 10 % from those under autocast; "
            "rounding to bfloat16 may grow in this model: use float32"
        )
    raise Unsupported(
        "freezing full: the results of the frozen copy differ: the capture lacks something that this module does"
    )


def require_comparable(wanted: Any) -> None:
    """Raise Unsupported if a result holds NaN."""
    if has_nan(wanted):
        raise Unsupported(
            "freezing full: the module returns NaN for the example inputs, so results cannot be compared; "
            "pass other inputs"
        )


def is_equivalent(wanted: Any, got: Any, dtype: torch.dtype = torch.float32) -> bool:
    """Return whether two results are the same up to rounding in the type that they were computed in."""
    ones, others = list(list_leaves(wanted)), list(list_leaves(got))
    return len(ones) == len(others) and all(_is_close(one, other, dtype) for one, other in zip(ones, others))


def has_nan(result: Any) -> bool:
    """Return whether a tensor of a result holds NaN."""
    return any(isinstance(each, Tensor) and bool(each.isnan().any()) for each in list_leaves(result))


def list_leaves(result: Any, depth: int = 0) -> Iterator[Any]:
    """List the values in nested results, including those of dataclasses and plain objects."""
    for each in pytree.tree_leaves(result):
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            fields: Dict[str, Any] = {f.name: getattr(each, f.name) for f in dataclasses.fields(each)}
            yield from list_leaves(fields, depth + 1)
        elif _has_only_attributes(each) and depth < _MAX_DEPTH:
            # Objects such as caches compare by identity, so what they hold is compared.
            yield from list_leaves(dict(sorted(vars(each).items())), depth + 1)
        else:
            yield each


def _has_only_attributes(item: Any) -> bool:
    """Return whether an object has attributes, and no comparison by value."""
    is_object = hasattr(item, "__dict__") and not isinstance(item, (Tensor, type, nn.Module)) and not callable(item)
    return is_object and getattr(type(item), "__eq__", None) is object.__eq__


def _is_close(one: Any, other: Any, dtype: torch.dtype) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    allowed = 1e-3 if torch.float32 == dtype == one.dtype == other.dtype else 0.1
    one, other = one.double(), other.double()
    # The difference of equal infinities is NaN.
    is_masked = one.isinf() & (one == other)
    one, other = (each.masked_fill(is_masked, 0.0) for each in (one, other))
    # Results that cancel to almost nothing consist of rounding errors.
    floor = 1e-6 * math.sqrt(one.numel())
    return bool((one - other).norm() <= allowed * one.norm() + floor)
