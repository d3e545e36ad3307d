"""How operators treat a batch that is cut along one dimension: which one it came from, and where it goes.

Measured side: standard library and torch only, Python 3.9. What is not known here is not cut.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

_aten = torch.ops.aten
_ELEMENTWISE = {
    _aten.relu.default,
    _aten.tanh.default,
    _aten.sigmoid.default,
    _aten.gelu.default,
    _aten.silu.default,
    _aten.neg.default,
    _aten.exp.default,
    _aten.clone.default,
    _aten.contiguous.default,
}
_BINARY = {_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor}
_REDUCING = {_aten.sum.dim_IntList, _aten.mean.dim}


def val(node: Any) -> Any:
    """A node's value, without its numbers."""
    return node.meta["val"]


def before(node: Any, dim: int) -> Optional[Tuple[Any, int]]:
    """The value this one was made of, and the dimension of it that `dim` comes from."""
    if node.op != "call_function" or not node.all_input_nodes:
        return None
    source, num_dims = node.args[0], val(node).dim()
    if node.target in _ELEMENTWISE and len(node.all_input_nodes) == 1:
        return source, dim
    if node.target == _aten.flip.default:
        return None if dim in _normal(node.args[1], num_dims) else (source, dim)
    if node.target in (_aten.transpose.int, _aten.permute.default):
        return source, _order(node)[dim]
    return None


def _order(node: Any) -> List[int]:
    """For each dimension of the result, the one it was."""
    num_dims = val(node).dim()
    if node.target == _aten.permute.default:
        return _normal(node.args[1], num_dims)
    order = list(range(num_dims))
    one, other = _normal(node.args[1:3], num_dims)
    order[one], order[other] = order[other], order[one]
    return order


def _normal(dims: Sequence[int], num_dims: int) -> List[int]:
    return [dim % num_dims for dim in dims]


def following(node: Any, dims: Dict[Any, int]) -> Optional[int]:
    """The dimension along which a node's result is cut when what it takes is cut so; None: it cannot be."""
    if node.kwargs or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    first = node.args[0]
    target, num_dims = node.target, val(node).dim()
    if target in (_aten.cat.default, _aten.stack.default):
        return _of_joined(node, dims)
    if target in _BINARY:
        return _of_two(node, dims)
    if first not in dims or len(dims) != 1:
        return None
    dim = dims[first]
    if target in _ELEMENTWISE:
        return dim
    if target == _aten.flip.default:
        return None if dim in _normal(node.args[1], num_dims) else dim
    if target in (_aten.transpose.int, _aten.permute.default):
        return _order(node).index(dim)
    if target in _REDUCING:
        return _of_reduced(node, dim)
    if target == _aten.linear.default:
        return dim if dim < num_dims - 1 else None
    if target == _aten.slice.Tensor:
        return None if node.args[1] % num_dims == dim else dim
    if target == _aten.select.int:
        chosen = node.args[1] % val(first).dim()
        return None if chosen == dim else dim - int(chosen < dim)
    return None


def _of_joined(node: Any, dims: Dict[Any, int]) -> Optional[int]:
    parts = node.args[0]
    if any(one not in dims for one in parts) or len({dims[one] for one in parts}) != 1:
        return None
    dim, along = dims[parts[0]], node.args[1] if len(node.args) > 1 else 0
    along = int(along) % int(val(node).dim())
    if node.target == _aten.stack.default:
        return dim + int(along <= dim)
    return None if along == dim else dim


def _of_two(node: Any, dims: Dict[Any, int]) -> Optional[int]:
    tensors = [one for one in node.args[:2] if isinstance(one, torch.fx.Node)]
    if len(node.args) != 2 or {dims.get(one) for one in tensors} != {dims.get(tensors[0])}:
        return None
    same = all(val(one).shape == val(node).shape for one in tensors)
    return dims[tensors[0]] if same else None


def _of_reduced(node: Any, dim: int) -> Optional[int]:
    num_dims = val(node.args[0]).dim()
    reduced = _normal(node.args[1] or list(range(num_dims)), num_dims)
    if dim in reduced:
        return None
    keeps = len(node.args) > 2 and bool(node.args[2])
    return dim if keeps else dim - sum(one < dim for one in reduced)
