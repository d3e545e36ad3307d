"""The bytes that a torch operator has to move: what it reads once and what it writes once.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from torch import Tensor

from corewise.runtimes.torch.breakdown_work import Args, operator_name, span_bytes, tensors_in

_ALLOCATES = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_PICKS = frozenset(("embedding", "index_select", "gather", "index", "take", "take_along_dim"))
_BAGS = frozenset(("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only"))
_PUTS = frozenset((
    "index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_", "index_fill_",
))  # fmt: skip
_ONLY_SHAPE = frozenset((  # the first argument says how large the result is, and is not read
    "copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_",
    "_foreach_copy_", "_foreach_zero_",
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_zeros", "new_ones", "new_full",
))  # fmt: skip


def traffic(func: Any, category: str, args: Args, kwargs: Mapping[str, Any], made: Any) -> float:
    """Bytes when every tensor is read or written once; of a table only what is picked; 0 for a view."""
    name = operator_name(func)
    if category == "view" or name in _ALLOCATES:
        return 0.0
    if name in _PICKS:
        indices, picked = tensors_in((args[1:], kwargs)), tensors_in(made)
        return _bytes(indices) + 2.0 * _bytes(picked)
    if name in _BAGS:
        table, indices = args[0], args[1]
        rows_bytes = float(indices.numel() * table.shape[-1] * table.element_size())
        return rows_bytes + _bytes(tensors_in((args[1:], kwargs))) + _bytes(tensors_in(made))
    if name in _PUTS:
        return _bytes(tensors_in((args[1:], kwargs))) + 2.0 * _put_bytes(args)
    told = {each.name: value for each, value in zip(func._schema.arguments, args)}
    told.update(kwargs)
    left_out = {"out"} | ({func._schema.arguments[0].name} if name in _ONLY_SHAPE else set())
    read = [each for role, value in told.items() if role not in left_out for each in tensors_in(value)]
    return _bytes(read) + _bytes([*tensors_in(made), *_written(func, told)])


def _written(func: Any, told: Mapping[str, Any]) -> List[Tensor]:
    """Arguments that the operator writes to, as its schema says; many return none of them."""
    found: List[Tensor] = []
    for each in func._schema.arguments:
        writes = each.alias_info is not None and each.alias_info.is_write
        is_gradient = each.name == "grads" and told.get("grad_scale") is None  # written when scaled, only
        if writes and not is_gradient:
            found += tensors_in(told.get(each.name))
    return found


def _put_bytes(args: Args) -> float:
    """Of what is written into a tensor at some indices: the values, or a number for each index."""
    into, others = args[0], tensors_in(args[1:])
    values = [each for each in others if each.dtype == into.dtype and each.dim() > 0]
    if values:
        return _bytes(values[-1:])
    return float(max((each.numel() for each in others), default=0) * into.element_size())


def _bytes(found: Sequence[Tensor]) -> float:
    """Of distinct tensors together."""
    distinct = {(each.data_ptr(), tuple(each.shape), each.stride()): each for each in found}
    return float(sum(span_bytes(each) for each in distinct.values()))
