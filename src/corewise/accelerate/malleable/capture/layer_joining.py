"""Join small recurrent layers over one input of an exported graph into wider ones.

Measured side: standard library and torch only, Python 3.9. The wide layer is then cut along its batch, so
that every core has work. Its weights are concatenated in every call from the module's current weights. With
gradients, layers are joined only if they contribute to the same results: a layer that a loss does not depend
on must get no gradient instead of zeros, and losses may be differentiated one after the other.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, Dict, FrozenSet, Hashable, List, Sequence

import torch

from corewise.accelerate.capture.graph_nodes import get_value, is_mutating
from corewise.accelerate.capture.recurrent_shapes import infer_shapes
from corewise.accelerate.fast_kernels.wide_lstm import build_wide_weights, choose_group_sizes, count_vector_lanes
from corewise.accelerate.malleable.capture.batch_cuts import (
    MAX_WEIGHT_BYTES,
    MIN_SLICE_ROWS,
    add_call,
    count_batch_rows,
    is_cuttable,
)

_aten = torch.ops.aten
# Operators with equal results for equal arguments.
_DETERMINISTIC = {
    _aten.flip.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.contiguous.default,
    _aten.clone.default,
}
# Operators that accept arguments of any strides.
_STRIDE_AGNOSTIC = {
    _aten.flip.default,
    _aten.cat.default,
    _aten.stack.default,
    _aten.sum.dim_IntList,
    _aten.mean.dim,
    _aten.linear.default,
    _aten.contiguous.default,
}


def join_layers(graph: Any, num_cores: int, num_lanes: int = 0) -> int:
    """Join layers where that is sound and likely faster; return the number of joined layers."""
    nodes = list(graph.nodes)
    groups = _group_layers(nodes)
    are_cut = len({count_batch_rows(node) for node in nodes if is_cuttable(node)}) == 1
    if not groups or not are_cut or any(is_mutating(node) for node in nodes):
        return 0
    num_lanes = num_lanes or count_vector_lanes()
    num_joined = 0
    for group in groups:
        for size in choose_group_sizes(len(group), _get_hidden_size(group[0]), num_lanes):
            layers, group = group[:size], group[size:]
            if size > 1 and _has_enough_work(layers, len(groups), num_cores):
                _join_group(graph, layers)
                num_joined += size
    # Remove operators whose results only the joined layers read.
    for node in reversed(list(graph.nodes)):
        is_pure = node.target in _DETERMINISTIC or node.target is _aten.zeros.default
        if num_joined and is_pure and not node.users:
            graph.erase_node(node)
    graph.lint()
    return num_joined


def _group_layers(nodes: Sequence[Any]) -> List[List[Any]]:
    """Group recurrent layers that differ only in their weights, over equal inputs, from zero states."""
    groups: Dict[Hashable, List[Any]] = {}
    layers = [node for node in nodes if is_cuttable(node) and node.target is _aten.lstm.input]
    has_gradients = torch.is_grad_enabled() and len(layers) > 1
    results = _find_gradient_results(nodes) if has_gradients else {}
    for node in filter(_is_plain, layers):
        x, _, params, *rest = node.args
        shapes = tuple(tuple(get_value(one).shape) for one in params)
        signature = (shapes, str(node.args[1][0].kwargs), *rest, results.get(node))
        groups.setdefault((_describe_source(x), *signature), []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _find_gradient_results(nodes: Sequence[Any]) -> Dict[Any, FrozenSet[int]]:
    """Find for each node the results of the graph from which gradients reach it."""
    results: Dict[Any, FrozenSet[int]] = {}
    [end] = [node for node in nodes if node.op == "output"]
    for node in reversed(nodes):
        direct = frozenset(index for index, one in enumerate(end.args[0]) if one is node)
        indirect = (results[user] for user in node.users if user is not end)
        results[node] = direct.union(*indirect) if _has_gradients(node) else frozenset()
    return results


def _has_gradients(node: Any) -> bool:
    value = node.meta.get("val")
    is_integral = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return not is_integral and node.target is not _aten.detach.default


def _is_plain(node: Any) -> bool:
    x, states, params, _, num_layers, _, _, bidirectional, batch_first = node.args
    num_directions = 2 if bidirectional else 1
    is_single = num_layers == 1 and not batch_first and len(params) in (2 * num_directions, 4 * num_directions)
    from_zeros = all(
        one.target is _aten.zeros.default and all(type(size) is int for size in one.args[0]) for one in states
    )
    are_weights = all(one.op == "placeholder" and get_value(one).dtype == torch.float32 for one in params)
    # A recurrent weight of another shape belongs to an LSTM with projection.
    fits = get_value(params[1]).shape == (4 * _get_hidden_size(node), _get_hidden_size(node))
    return is_single and from_zeros and are_weights and fits and get_value(x).dtype == torch.float32


def _get_hidden_size(node: Any) -> int:
    return int(get_value(node.args[1][0]).shape[-1])


def _describe_source(node: Any) -> Hashable:
    """Describe how a value is computed; equal descriptions mean equal values."""
    if node.op == "call_function" and node.target in _DETERMINISTIC and len(node.all_input_nodes) == 1:
        return (node.target, _describe_source(node.args[0]), str(node.args[1:]), str(node.kwargs))
    return node  # type: ignore[no-any-return]


def _has_enough_work(layers: Sequence[Any], num_groups: int, num_cores: int) -> bool:
    """Return whether the joined layer can be cut, and its slices occupy all cores."""
    numels = [int(get_value(one).numel()) for one in layers[0].args[2]]
    # The joined recurrent weights are block-diagonal, with zeros between the blocks.
    square = numels[1::4] if layers[0].args[3] else numels[1::2]
    num_weights = len(layers) * (sum(numels) + (len(layers) - 1) * sum(square))
    if num_weights * get_value(layers[0].args[2][0]).element_size() > MAX_WEIGHT_BYTES:
        return False
    return count_batch_rows(layers[0]) // MIN_SLICE_ROWS * num_groups >= num_cores


def _join_group(graph: Any, layers: Sequence[Any]) -> None:
    """Replace the layers by one, and their results by parts of its results."""
    first, hidden = layers[0], _get_hidden_size(layers[0])
    x, states, params, *rest = first.args
    with graph.inserting_before(first):
        sizes = [*states[0].args[0][:-1], hidden * len(layers)]
        zeros = [add_call(graph, _aten.zeros.default, (sizes,), kwargs=one.kwargs) for one in states]
        weights = build_wide_weights(
            [layer.args[2] for layer in layers],
            [[int(size) for size in get_value(one).shape] for one in params],
            partial(_add_operator, graph),
            num_directions=2 if first.args[7] else 1,
        )
        wide = add_call(graph, first.target, (x, zeros, weights, *rest), shapes=infer_shapes)
        results = [add_call(graph, operator.getitem, (wide, place)) for place in range(len(get_value(wide)))]
    for number, layer in enumerate(layers):
        # Every user is a getitem.
        for user in [one for one in layer.users if one.users]:
            with graph.inserting_before(user):
                part = _extract_part(graph, results[user.args[1]], number, hidden, hidden * len(layers))
                is_read_whole = any(each.target not in _STRIDE_AGNOSTIC for each in user.users)
                if is_read_whole and part.target is _aten.slice.Tensor:
                    part = add_call(graph, _aten.contiguous.default, (part,))
            user.replace_all_uses_with(part)
        for user in list(layer.users):
            graph.erase_node(user)
        graph.erase_node(layer)


def _extract_part(graph: Any, whole: Any, number: int, hidden: int, width: int) -> Any:
    """Extract one layer's part of the wide result, whose rows hold both directions in sequence."""
    begins = range(number * hidden, int(get_value(whole).shape[2]), width)
    views = [add_call(graph, _aten.slice.Tensor, (whole, 2, begin, begin + hidden)) for begin in begins]
    return views[0] if len(views) == 1 else add_call(graph, _aten.cat.default, (views, 2))


def _add_operator(graph: Any, target: Any, args: Sequence[Any]) -> Any:
    return add_call(graph, target, tuple(args))
