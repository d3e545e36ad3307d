"""Rules for how operators propagate a batch that is cut along one dimension.

Measured side: standard library and torch only, Python 3.9. Operators without a rule are not cut.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch

from corewise.accelerate.capture.graph_nodes import get_value

_aten = torch.ops.aten
# The dimension along which each cut input of a node is cut.
Dims = Mapping[Any, int]
Rule = Callable[[Any, Dims], Optional[int]]


def _find_overloads(*names: str) -> List[Any]:
    """Find those of these operators that this version of torch has."""
    overloads = []
    for name in names:
        operator, _, overload = name.partition(".")
        packet = getattr(_aten, operator, None)
        if packet is not None and (overload or "default") in packet.overloads():
            overloads.append(getattr(packet, overload or "default"))
    return overloads


_UNARY = _find_overloads(
    "relu", "relu6", "hardtanh", "leaky_relu", "elu", "selu", "tanh", "sigmoid", "hardsigmoid", "hardswish",
    "gelu", "silu", "mish", "softplus", "neg", "exp", "log", "sqrt", "rsqrt", "abs", "sin", "cos", "erf",
    "clamp", "clamp_min", "pow.Tensor_Scalar", "clone", "contiguous", "to.dtype", "add.Scalar", "sub.Scalar",
    "mul.Scalar", "div.Scalar", "rsub.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar",
    "eq.Scalar", "ne.Scalar", "logical_not", "bitwise_not",
)  # fmt: skip
_ELEMENTWISE = _find_overloads(
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum", "minimum", "pow.Tensor_Tensor",
    "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "eq.Tensor", "ne.Tensor", "logical_and", "logical_or",
    "masked_fill.Scalar", "where.self", "where.ScalarOther", "where.ScalarSelf",
)  # fmt: skip
# Operators on images, where the result of a row does not depend on other rows.
_SPATIAL = _find_overloads(
    "conv1d", "conv2d", "conv3d", "conv2d.padding", "conv_transpose2d.input", "group_norm", "max_pool1d",
    "max_pool2d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "upsample_nearest2d.vec",
    "upsample_bilinear2d.vec", "pixel_shuffle",
)  # fmt: skip
# Dimensions of a batched input. With one dimension less, dimension 0 holds channels.
_BATCHED_RANKS = {
    target: rank
    for names, rank in (
        (("conv1d",), 3),
        (("conv2d", "conv2d.padding", "conv_transpose2d.input", "pixel_shuffle"), 4),
        (("conv3d",), 5),
    )
    for target in _find_overloads(*names)
}
_REDUCTIONS = _find_overloads("sum.dim_IntList", "mean.dim", "amax", "amin", "argmax", "any.dim", "all.dim")
_ALONG_DIM = _find_overloads("softmax.int", "log_softmax.int", "cumsum", "topk", "max.dim", "min.dim", "sort")
_RESHAPES = _find_overloads("view", "reshape", "_unsafe_view", "expand")
_SPLITS = _find_overloads("split.Tensor", "split_with_sizes", "chunk")
# Operators that may draw random numbers, with the index of the argument that enables it.
_RANDOMNESS_FLAGS = {_aten.dropout.default: 2}


def find_source(node: Any, dim: int) -> Optional[Tuple[Any, int]]:
    """Find the value that a node was computed from, and which of its dimensions became `dim`."""
    if node.op != "call_function" or not node.all_input_nodes:
        return None
    source, num_dims = node.args[0], get_value(node).dim()
    if node.target in _UNARY and len(node.all_input_nodes) == 1:
        return source, dim
    if node.target == _aten.flip.default:
        return None if dim in _normalize_dims(node.args[1], num_dims) else (source, dim)
    if node.target in (_aten.transpose.int, _aten.permute.default):
        return source, _get_dim_order(node)[dim]
    return None


def find_cut_dim(node: Any, dims: Dims) -> Optional[int]:
    """Find the dimension along which the results are cut when the inputs are; None if they cannot be."""
    rule = _RULES.get(node.target) or _CUSTOM_RULES.get(_get_operator_name(node.target))
    if rule is None or any(isinstance(one, torch.fx.Node) for one in node.kwargs.values()):
        return None
    results = get_value(node) if isinstance(get_value(node), (tuple, list)) else (get_value(node),)
    if not all(isinstance(one, torch.Tensor) for one in results):
        return None
    return rule(node, dims)


def resize_args(node: Any, args: Tuple[Any, ...], dim: int, num_rows: int) -> Tuple[Any, ...]:
    """Adapt size arguments to a slice of `num_rows` rows."""
    if node.target not in _RESHAPES:
        return args
    sizes = list(args[1])
    if sizes[dim] != -1:
        sizes[dim] = num_rows
    return (args[0], sizes, *args[2:])


def _get_first_cut_dim(node: Any, dims: Dims) -> Optional[int]:
    """Return the cut dimension of the first argument if nothing else is cut, else None."""
    first, *others = node.args
    return dims.get(first) if len(dims) == 1 and first not in others else None


def _get_dim_order(node: Any) -> List[int]:
    """Return for each dimension of the result its dimension in the input."""
    num_dims = get_value(node).dim()
    if node.target == _aten.permute.default:
        return _normalize_dims(node.args[1], num_dims)
    order = list(range(num_dims))
    one, other = _normalize_dims(node.args[1:3], num_dims)
    order[one], order[other] = order[other], order[one]
    return order


def _normalize_dims(dims: Sequence[int], num_dims: int) -> List[int]:
    return [dim % num_dims for dim in dims]


def _get_argument(node: Any, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _follow_unary(node: Any, dims: Dims) -> Optional[int]:
    draws = _RANDOMNESS_FLAGS.get(node.target)
    return None if draws is not None and node.args[draws] else _get_first_cut_dim(node, dims)


def _follow_elementwise(node: Any, dims: Dims) -> Optional[int]:
    """Follow the batch through a broadcast; what is not cut must have one row for all."""
    num_dims = int(get_value(node).dim())
    places = {dim + num_dims - int(get_value(one).dim()) for one, dim in dims.items()}
    if len(places) != 1:
        return None
    [place] = places
    num_rows = get_value(node).shape[place]
    for one in node.all_input_nodes:
        dim_of_input = place - num_dims + get_value(one).dim()
        size = get_value(one).shape[dim_of_input] if dim_of_input >= 0 else 1
        if size != (num_rows if one in dims else 1):
            return None
    return place


def _follow_spatial(node: Any, dims: Dims) -> Optional[int]:
    rank = get_value(node.args[0]).dim()
    return 0 if _get_first_cut_dim(node, dims) == 0 and rank == _BATCHED_RANKS.get(node.target, rank) else None


def _follow_batch_norm(node: Any, dims: Dims) -> Optional[int]:
    return 0 if _get_first_cut_dim(node, dims) == 0 and not node.args[5] else None


def _follow_layer_norm(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return dim if dim is not None and dim < get_value(node).dim() - len(node.args[1]) else None


def _follow_linear(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return dim if dim is not None and dim < get_value(node).dim() - 1 else None


def _follow_embedding(node: Any, dims: Dims) -> Optional[int]:
    return dims.get(node.args[1]) if len(dims) == 1 else None


def _follow_matmul(node: Any, dims: Dims) -> Optional[int]:
    left, right = node.args[:2]
    if left in dims and right in dims:
        is_batched = (
            get_value(left).dim() == get_value(right).dim() and dims[left] == dims[right] < get_value(left).dim() - 2
        )
        return dims[left] if is_batched else None
    is_by_matrix = left in dims and get_value(right).dim() == 2 and get_value(left).dim() >= 2
    return dims[left] if is_by_matrix and dims[left] < get_value(left).dim() - 1 else None


def _follow_attention(node: Any, dims: Dims) -> Optional[int]:
    query, key, value, *rest = node.args
    cut_dims = {dims.get(one) for one in (query, key, value)}
    masks = [one for one in rest if isinstance(one, torch.fx.Node)]
    dropout = _get_argument(node, 4, "dropout_p", 0.0)
    has_same_rows = len({get_value(one).shape[:-2] for one in (query, key, value)}) == 1
    if len(cut_dims) != 1 or None in cut_dims or masks or dropout or not has_same_rows:
        return None
    [dim] = cut_dims
    return dim if dim is not None and dim < get_value(query).dim() - 2 else None


def _follow_flip(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return None if dim in _normalize_dims(node.args[1], get_value(node).dim()) else dim


def _follow_permutation(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return None if dim is None else _get_dim_order(node).index(dim)


def _follow_slice(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return None if _get_argument(node, 1, "dim", 0) % get_value(node).dim() == dim else dim


def _follow_select(node: Any, dims: Dims) -> Optional[int]:
    dim, chosen = _get_first_cut_dim(node, dims), node.args[1] % get_value(node.args[0]).dim()
    return None if dim is None or chosen == dim else dim - int(chosen < dim)


def _follow_unsqueeze(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return None if dim is None else dim + int(node.args[1] % get_value(node).dim() <= dim)


def _follow_squeeze(node: Any, dims: Dims) -> Optional[int]:
    dim, source = _get_first_cut_dim(node, dims), get_value(node.args[0])
    removed = node.args[1] % source.dim()
    if dim is None or removed == dim:
        return None
    return dim - int(removed < dim and source.shape[removed] == 1)


def _follow_flatten(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return dim if dim is not None and dim < _get_argument(node, 1, "start_dim", 0) % _count_dims(node) else None


def _count_dims(node: Any) -> int:
    return max(1, int(get_value(node.args[0]).dim()))


def _follow_reshape(node: Any, dims: Dims) -> Optional[int]:
    """Follow the batch through a reshape that keeps all dimensions up to the cut one."""
    dim, source = _get_first_cut_dim(node, dims), get_value(node.args[0])
    if dim is None or (node.target == _aten.expand.default and get_value(node).dim() != source.dim()):
        return None
    return dim if get_value(node).shape[: dim + 1] == source.shape[: dim + 1] else None


def _follow_along_dim(node: Any, dims: Dims) -> Optional[int]:
    dim, num_dims = _get_first_cut_dim(node, dims), _count_dims(node)
    position_and_default = {_aten.topk.default: (2, -1), _aten.sort.default: (1, -1)}.get(node.target, (1, None))
    along = _get_argument(node, position_and_default[0], "dim", position_and_default[1])
    if dim is None or along is None or along % num_dims == dim:
        return None
    keeps = node.target not in (_aten.max.dim, _aten.min.dim) or _get_argument(node, 2, "keepdim", False)
    return dim if keeps else dim - int(along % num_dims < dim)


def _follow_split(node: Any, dims: Dims) -> Optional[int]:
    dim = _get_first_cut_dim(node, dims)
    return None if _get_argument(node, 2, "dim", 0) % _count_dims(node) == dim else dim


def _follow_unbind(node: Any, dims: Dims) -> Optional[int]:
    dim, removed = _get_first_cut_dim(node, dims), _get_argument(node, 1, "dim", 0) % _count_dims(node)
    return None if dim is None or removed == dim else dim - int(removed < dim)


def _follow_concatenation(node: Any, dims: Dims) -> Optional[int]:
    parts = node.args[0]
    if any(one not in dims for one in parts) or len({dims[one] for one in parts}) != 1:
        return None
    dim, along = dims[parts[0]], _get_argument(node, 1, "dim", 0)
    along = int(along) % int(get_value(node).dim())
    if node.target == _aten.stack.default:
        return dim + int(along <= dim)
    return None if along == dim else dim


def _follow_reduction(node: Any, dims: Dims) -> Optional[int]:
    dim, num_dims = _get_first_cut_dim(node, dims), _count_dims(node)
    requested = _get_argument(node, 1, "dim", None)
    requested = [requested] if isinstance(requested, int) else requested
    reduced = _normalize_dims(requested or list(range(num_dims)), num_dims)
    if dim is None or dim in reduced:
        return None
    keeps = bool(_get_argument(node, 2, "keepdim", False))
    return dim if keeps else dim - sum(one < dim for one in reduced)


def _get_operator_name(target: Any) -> str:
    return str(target._schema.name) if isinstance(target, torch._ops.OpOverload) else ""


def _find_packed_operator(name: str) -> List[Any]:
    """Find the operator on packed weights, if this version of torch has it."""
    packet = getattr(torch.ops.mkldnn, name, None)
    return [packet.default] if packet is not None else []


def _build_table(*rows: Tuple[Iterable[Any], Rule]) -> Dict[Any, Rule]:
    return {target: rule for targets, rule in rows for target in targets}


# Rules by name, for operators that may be registered later.
_CUSTOM_RULES: Dict[str, Rule] = {"corewise::winograd_convolution": _follow_spatial}
_RULES = _build_table(
    (_UNARY, _follow_unary),
    (_find_overloads("dropout"), _follow_unary),
    (_ELEMENTWISE, _follow_elementwise),
    (_SPATIAL, _follow_spatial),
    (_REDUCTIONS, _follow_reduction),
    (_ALONG_DIM, _follow_along_dim),
    (_RESHAPES, _follow_reshape),
    (_SPLITS, _follow_split),
    (_find_overloads("unbind.int"), _follow_unbind),
    (_find_overloads("cat", "stack"), _follow_concatenation),
    (_find_overloads("batch_norm"), _follow_batch_norm),
    (_find_overloads("layer_norm"), _follow_layer_norm),
    (_find_overloads("linear"), _follow_linear),
    (_find_packed_operator("_linear_pointwise"), _follow_linear),
    (_find_packed_operator("_convolution_pointwise"), _follow_spatial),
    (_find_overloads("embedding"), _follow_embedding),
    (_find_overloads("matmul", "bmm"), _follow_matmul),
    (_find_overloads("scaled_dot_product_attention"), _follow_attention),
    (_find_overloads("flip"), _follow_flip),
    (_find_overloads("transpose.int", "permute"), _follow_permutation),
    (_find_overloads("slice.Tensor"), _follow_slice),
    (_find_overloads("select.int"), _follow_select),
    (_find_overloads("unsqueeze"), _follow_unsqueeze),
    (_find_overloads("squeeze.dim"), _follow_squeeze),
    (_find_overloads("flatten.using_ints"), _follow_flatten),
)
