"""How operators treat a batch that is cut along one dimension: which one it came from, and where it goes.

Measured side: standard library and torch only, Python 3.9. What is not known here is not cut.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

_aten = torch.ops.aten
Dims = Mapping[Any, int]  # along which those of a node's inputs that are cut are cut
Rule = Callable[[Any, Dims], Optional[int]]


def _overloads(*names: str) -> List[Any]:
    """Those of these operators that this torch has."""
    found = []
    for name in names:
        operator, _, overload = name.partition(".")
        packet = getattr(_aten, operator, None)
        if packet is not None and (overload or "default") in packet.overloads():
            found.append(getattr(packet, overload or "default"))
    return found


_ALONE = _overloads(
    "relu", "relu6", "hardtanh", "leaky_relu", "elu", "selu", "tanh", "sigmoid", "hardsigmoid", "hardswish",
    "gelu", "silu", "mish", "softplus", "neg", "exp", "log", "sqrt", "rsqrt", "abs", "sin", "cos", "erf",
    "clamp", "clamp_min", "pow.Tensor_Scalar", "clone", "contiguous", "to.dtype", "add.Scalar", "sub.Scalar",
    "mul.Scalar", "div.Scalar", "rsub.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar",
    "eq.Scalar", "ne.Scalar", "logical_not", "bitwise_not",
)  # fmt: skip
_TOGETHER = _overloads(
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "pow.Tensor_Tensor",
    "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "eq.Tensor", "ne.Tensor", "logical_and", "logical_or",
    "masked_fill.Scalar", "where.self", "where.ScalarOther", "where.ScalarSelf",
)  # fmt: skip
_OF_IMAGES = _overloads(  # what each row of a batch gets does not depend on the others
    "conv1d", "conv2d", "conv3d", "conv2d.padding", "conv_transpose2d.input", "group_norm", "max_pool1d",
    "max_pool2d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "upsample_nearest2d.vec",
    "upsample_bilinear2d.vec", "pixel_shuffle",
)  # fmt: skip
_RANKS = {  # of a batch; with one dimension less the first is that of channels
    target: rank
    for names, rank in (
        (("conv1d",), 3),
        (("conv2d", "conv2d.padding", "conv_transpose2d.input", "pixel_shuffle"), 4),
        (("conv3d",), 5),
    )
    for target in _overloads(*names)
}
_REDUCING = _overloads("sum.dim_IntList", "mean.dim", "amax", "amin", "argmax", "any.dim", "all.dim")
_ALONG_ONE = _overloads("softmax.int", "log_softmax.int", "cumsum", "topk", "max.dim", "min.dim", "sort")
_SHAPING = _overloads("view", "reshape", "_unsafe_view", "expand")
_SPLITTING = _overloads("split.Tensor", "split_with_sizes", "chunk")
_CAUSES_OF_RANDOMNESS = {_aten.dropout.default: 2}  # the argument that says whether it draws


def val(node: Any) -> Any:
    """A node's value, without its numbers."""
    return node.meta["val"]


def before(node: Any, dim: int) -> Optional[Tuple[Any, int]]:
    """The value this one was made of, and the dimension of it that `dim` comes from."""
    if node.op != "call_function" or not node.all_input_nodes:
        return None
    source, num_dims = node.args[0], val(node).dim()
    if node.target in _ALONE and len(node.all_input_nodes) == 1:
        return source, dim
    if node.target == _aten.flip.default:
        return None if dim in _normal(node.args[1], num_dims) else (source, dim)
    if node.target in (_aten.transpose.int, _aten.permute.default):
        return source, _order(node)[dim]
    return None


def following(node: Any, dims: Dims) -> Optional[int]:
    """The dimension along which a node's results are cut when what it takes is cut so; None: they are not."""
    rule = _RULES.get(node.target) or _OWN_RULES.get(_name(node.target))
    if rule is None or any(isinstance(one, torch.fx.Node) for one in node.kwargs.values()):
        return None
    results = val(node) if isinstance(val(node), (tuple, list)) else (val(node),)
    if not all(isinstance(one, torch.Tensor) for one in results):
        return None
    return rule(node, dims)


def with_rows(node: Any, args: Tuple[Any, ...], dim: int, num_rows: int) -> Tuple[Any, ...]:
    """The arguments for a slice of so many rows, where sizes are among them."""
    if node.target not in _SHAPING:
        return args
    sizes = list(args[1])
    if sizes[dim] != -1:
        sizes[dim] = num_rows
    return (args[0], sizes, *args[2:])


def _first_alone(node: Any, dims: Dims) -> Optional[int]:
    """The dimension of the first argument, if that is all that is cut and comes as no other argument too."""
    first, *others = node.args
    return dims.get(first) if len(dims) == 1 and first not in others else None


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


def _argument(node: Any, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _alone(node: Any, dims: Dims) -> Optional[int]:
    draws = _CAUSES_OF_RANDOMNESS.get(node.target)
    return None if draws is not None and node.args[draws] else _first_alone(node, dims)


def _together(node: Any, dims: Dims) -> Optional[int]:
    """Element by element; what is not cut has one row for all."""
    num_dims = int(val(node).dim())
    places = {dim + num_dims - int(val(one).dim()) for one, dim in dims.items()}
    if len(places) != 1:
        return None
    [place] = places
    num_rows = val(node).shape[place]
    for one in node.all_input_nodes:
        own = place - num_dims + val(one).dim()
        size = val(one).shape[own] if own >= 0 else 1
        if size != (num_rows if one in dims else 1):
            return None
    return place


def _of_images(node: Any, dims: Dims) -> Optional[int]:
    rank = val(node.args[0]).dim()
    return 0 if _first_alone(node, dims) == 0 and rank == _RANKS.get(node.target, rank) else None


def _batch_norm(node: Any, dims: Dims) -> Optional[int]:
    return 0 if _first_alone(node, dims) == 0 and not node.args[5] else None


def _layer_norm(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return dim if dim is not None and dim < val(node).dim() - len(node.args[1]) else None


def _linear(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return dim if dim is not None and dim < val(node).dim() - 1 else None


def _embedding(node: Any, dims: Dims) -> Optional[int]:
    return dims.get(node.args[1]) if len(dims) == 1 else None


def _matmul(node: Any, dims: Dims) -> Optional[int]:
    one, other = node.args[:2]
    if one in dims and other in dims:
        alike = val(one).dim() == val(other).dim() and dims[one] == dims[other] < val(one).dim() - 2
        return dims[one] if alike else None
    is_by_matrix = one in dims and val(other).dim() == 2 and val(one).dim() >= 2
    return dims[one] if is_by_matrix and dims[one] < val(one).dim() - 1 else None


def _attention(node: Any, dims: Dims) -> Optional[int]:
    query, key, value, *rest = node.args
    found = {dims.get(one) for one in (query, key, value)}
    masks = [one for one in rest if isinstance(one, torch.fx.Node)]
    dropout = _argument(node, 4, "dropout_p", 0.0)
    same_rows = len({val(one).shape[:-2] for one in (query, key, value)}) == 1
    if len(found) != 1 or None in found or masks or dropout or not same_rows:
        return None
    [dim] = found
    return dim if dim is not None and dim < val(query).dim() - 2 else None


def _flip(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return None if dim in _normal(node.args[1], val(node).dim()) else dim


def _reordered(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return None if dim is None else _order(node).index(dim)


def _slice(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return None if _argument(node, 1, "dim", 0) % val(node).dim() == dim else dim


def _select(node: Any, dims: Dims) -> Optional[int]:
    dim, chosen = _first_alone(node, dims), node.args[1] % val(node.args[0]).dim()
    return None if dim is None or chosen == dim else dim - int(chosen < dim)


def _unsqueeze(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return None if dim is None else dim + int(node.args[1] % val(node).dim() <= dim)


def _squeeze(node: Any, dims: Dims) -> Optional[int]:
    dim, source = _first_alone(node, dims), val(node.args[0])
    gone = node.args[1] % source.dim()
    if dim is None or gone == dim:
        return None
    return dim - int(gone < dim and source.shape[gone] == 1)


def _flatten(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return dim if dim is not None and dim < _argument(node, 1, "start_dim", 0) % _num_dims(node) else None


def _num_dims(node: Any) -> int:
    return max(1, int(val(node.args[0]).dim()))


def _shaped(node: Any, dims: Dims) -> Optional[int]:
    """All dimensions up to the one that is cut stay as they are."""
    dim, source = _first_alone(node, dims), val(node.args[0])
    if dim is None or (node.target == _aten.expand.default and val(node).dim() != source.dim()):
        return None
    return dim if val(node).shape[: dim + 1] == source.shape[: dim + 1] else None


def _along_one(node: Any, dims: Dims) -> Optional[int]:
    dim, num_dims = _first_alone(node, dims), _num_dims(node)
    at = {_aten.topk.default: (2, -1), _aten.sort.default: (1, -1)}.get(node.target, (1, None))
    along = _argument(node, at[0], "dim", at[1])
    if dim is None or along is None or along % num_dims == dim:
        return None
    keeps = node.target not in (_aten.max.dim, _aten.min.dim) or _argument(node, 2, "keepdim", False)
    return dim if keeps else dim - int(along % num_dims < dim)


def _split(node: Any, dims: Dims) -> Optional[int]:
    dim = _first_alone(node, dims)
    return None if _argument(node, 2, "dim", 0) % _num_dims(node) == dim else dim


def _unbind(node: Any, dims: Dims) -> Optional[int]:
    dim, gone = _first_alone(node, dims), _argument(node, 1, "dim", 0) % _num_dims(node)
    return None if dim is None or gone == dim else dim - int(gone < dim)


def _joined(node: Any, dims: Dims) -> Optional[int]:
    parts = node.args[0]
    if any(one not in dims for one in parts) or len({dims[one] for one in parts}) != 1:
        return None
    dim, along = dims[parts[0]], _argument(node, 1, "dim", 0)
    along = int(along) % int(val(node).dim())
    if node.target == _aten.stack.default:
        return dim + int(along <= dim)
    return None if along == dim else dim


def _reduced(node: Any, dims: Dims) -> Optional[int]:
    dim, num_dims = _first_alone(node, dims), _num_dims(node)
    given = _argument(node, 1, "dim", None)
    given = [given] if isinstance(given, int) else given
    reduced = _normal(given or list(range(num_dims)), num_dims)
    if dim is None or dim in reduced:
        return None
    keeps = bool(_argument(node, 2, "keepdim", False))
    return dim if keeps else dim - sum(one < dim for one in reduced)


def _name(target: Any) -> str:
    return str(target._schema.name) if isinstance(target, torch._ops.OpOverload) else ""


def _packed(name: str) -> List[Any]:
    """The operator on packed weights, where this torch has it."""
    packet = getattr(torch.ops.mkldnn, name, None)
    return [packet.default] if packet is not None else []


def _table(*rows: Tuple[Iterable[Any], Rule]) -> Dict[Any, Rule]:
    return {target: rule for targets, rule in rows for target in targets}


_OWN_RULES: Dict[str, Rule] = {"corewise::winograd_convolution": _of_images}  # may be loaded later
_RULES = _table(
    (_ALONE, _alone),
    (_overloads("dropout"), _alone),
    (_TOGETHER, _together),
    (_OF_IMAGES, _of_images),
    (_REDUCING, _reduced),
    (_ALONG_ONE, _along_one),
    (_SHAPING, _shaped),
    (_SPLITTING, _split),
    (_overloads("unbind.int"), _unbind),
    (_overloads("cat", "stack"), _joined),
    (_overloads("batch_norm"), _batch_norm),
    (_overloads("layer_norm"), _layer_norm),
    (_overloads("linear"), _linear),
    (_packed("_linear_pointwise"), _linear),
    (_packed("_convolution_pointwise"), _of_images),
    (_overloads("embedding"), _embedding),
    (_overloads("matmul", "bmm"), _matmul),
    (_overloads("scaled_dot_product_attention"), _attention),
    (_overloads("flip"), _flip),
    (_overloads("transpose.int", "permute"), _reordered),
    (_overloads("slice.Tensor"), _slice),
    (_overloads("select.int"), _select),
    (_overloads("unsqueeze"), _unsqueeze),
    (_overloads("squeeze.dim"), _squeeze),
    (_overloads("flatten.using_ints"), _flatten),
)
