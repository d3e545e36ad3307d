"""Compute the bytes that a torch operator has to move: each input read once, each output written once.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from torch import Tensor

from corewise.measured.runtimes.torch.breakdown.work_classes import (
    Args,
    count_distinct_bytes,
    list_tensors,
    parse_operator_name,
)

_ALLOCATES = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_PICKS = frozenset(("embedding", "index_select", "gather", "index", "take", "take_along_dim"))
_BAGS = frozenset(("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"))
_PUTS = frozenset((
    "index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_", "index_fill_",
))  # fmt: skip
# Only the size of the first argument matters; its values are not read.
_ONLY_SHAPE = frozenset((
    "copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
    "_foreach_copy_", "_foreach_zero_",
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_zeros", "new_ones", "new_full",
))  # fmt: skip


def compute_traffic_bytes(func: Any, category: str, args: Args, kwargs: Mapping[str, Any], made: Any) -> float:
    """Compute the bytes if every tensor is read or written once; of a table only the picked rows."""
    name = parse_operator_name(func)
    if category == "view" or name in _ALLOCATES:
        return 0.0
    if name in _PICKS:
        indices, picked = list_tensors((args[1:], kwargs)), list_tensors(made)
        return _count_bytes(indices) + 2.0 * _count_bytes(picked)
    if name in _BAGS:
        table, indices = args[0], args[1]
        rows_bytes = float(indices.numel() * table.shape[-1] * table.element_size())
        return rows_bytes + _count_bytes(list_tensors((args[1:], kwargs))) + _count_bytes(list_tensors(made))
    if name in _PUTS:
        return _count_bytes(list_tensors((args[1:], kwargs))) + 2.0 * _count_put_bytes(args)
    arguments = {each.name: value for each, value in zip(func._schema.arguments, args)}
    arguments.update(kwargs)
    left_out = {"out"} | ({func._schema.arguments[0].name} if name in _ONLY_SHAPE else set())
    read = [each for role, value in arguments.items() if role not in left_out for each in list_tensors(value)]
    return _count_bytes(read) + _count_bytes([*list_tensors(made), *_find_written_tensors(func, arguments)])


def _find_written_tensors(func: Any, arguments: Mapping[str, Any]) -> List[Tensor]:
    """Find the arguments that the operator writes to by its schema; many are not returned."""
    tensors: List[Tensor] = []
    for each in func._schema.arguments:
        writes = each.alias_info is not None and each.alias_info.is_write
        # Gradients are written only if they are scaled.
        is_gradient = each.name == "grads" and arguments.get("grad_scale") is None
        if writes and not is_gradient:
            tensors += list_tensors(arguments.get(each.name))
    return tensors


def _count_put_bytes(args: Args) -> float:
    """Count the bytes written at indices: the values, or one element per index."""
    into, others = args[0], list_tensors(args[1:])
    values = [each for each in others if each.dtype == into.dtype and each.dim() > 0]
    if values:
        return _count_bytes(values[-1:])
    return float(max((each.numel() for each in others), default=0) * into.element_size())


def _count_bytes(tensors: Sequence[Tensor]) -> float:
    """Count the bytes of distinct tensors."""
    distinct = {(each.data_ptr(), tuple(each.shape), each.stride()): each for each in tensors}
    return float(sum(count_distinct_bytes(each) for each in distinct.values()))
