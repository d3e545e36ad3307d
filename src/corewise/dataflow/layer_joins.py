"""An exported graph with small recurrent layers over one input joined into wider ones.

Measured side: standard library and torch only, Python 3.9. The wide layer is cut along its batch afterwards,
so that every core has work; its weights are put together in every call, from what the module then holds.
Where gradients are computed, layers are joined only if they are parts of the same results: one that a loss
does not depend on must get no gradient, not one of zeros, and losses may go back one after the other.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, Dict, FrozenSet, Hashable, List, Sequence

import torch

from corewise.dataflow.batch_cuts import (
    FEWEST_ROWS,
    MOST_WEIGHT_BYTES,
    batch_rows,
    is_cuttable,
    new_call,
    writes,
)
from corewise.dataflow.batch_rules import val
from corewise.dataflow.recurrent import shapes_of
from corewise.dataflow.wide_lstm import sizes_joined, vector_lanes, wide_weights

_aten = torch.ops.aten
_SAME_OF_SAME = {  # of equal arguments, equal results
    _aten.flip.default,
    _aten.transpose.int,
    _aten.permute.default,
    _aten.contiguous.default,
    _aten.clone.default,
}
_TAKE_VIEWS = {  # they do not mind how their arguments lie in memory
    _aten.flip.default,
    _aten.cat.default,
    _aten.stack.default,
    _aten.sum.dim_IntList,
    _aten.mean.dim,
    _aten.linear.default,
    _aten.contiguous.default,
}


def join(graph: Any, num_cores: int, num_lanes: int = 0) -> int:
    """The number of layers that were joined, where that is sound and likely to help."""
    nodes = list(graph.nodes)
    groups = _groups(nodes)
    are_cut = len({batch_rows(node) for node in nodes if is_cuttable(node)}) == 1
    if not groups or not are_cut or any(writes(node) for node in nodes):
        return 0
    num_lanes = num_lanes or vector_lanes()
    num_joined = 0
    for group in groups:
        for size in sizes_joined(len(group), _hidden(group[0]), num_lanes):
            layers, group = group[:size], group[size:]
            if size > 1 and _leaves_work(layers, len(groups), num_cores):
                _join(graph, layers)
                num_joined += size
    for node in reversed(list(graph.nodes)):  # what only the joined layers read
        is_pure = node.target in _SAME_OF_SAME or node.target is _aten.zeros.default
        if num_joined and is_pure and not node.users:
            graph.erase_node(node)
    graph.lint()
    return num_joined


def _groups(nodes: Sequence[Any]) -> List[List[Any]]:
    """Recurrent layers alike in all but their weights, over equal inputs and from states of zeros."""
    found: Dict[Hashable, List[Any]] = {}
    layers = [node for node in nodes if is_cuttable(node) and node.target is _aten.lstm.input]
    has_gradients = torch.is_grad_enabled() and len(layers) > 1
    results = _results_with_gradients(nodes) if has_gradients else {}
    for node in filter(_is_plain, layers):
        x, _, params, *rest = node.args
        shapes = tuple(tuple(val(one).shape) for one in params)
        alike = (shapes, str(node.args[1][0].kwargs), *rest, results.get(node))
        found.setdefault((_source(x), *alike), []).append(node)
    return [group for group in found.values() if len(group) > 1]


def _results_with_gradients(nodes: Sequence[Any]) -> Dict[Any, FrozenSet[int]]:
    """For each node, which of the graph's results gradients reach it from."""
    found: Dict[Any, FrozenSet[int]] = {}
    [end] = [node for node in nodes if node.op == "output"]
    for node in reversed(nodes):
        own = frozenset(place for place, one in enumerate(end.args[0]) if one is node)
        beyond = (found[user] for user in node.users if user is not end)
        found[node] = own.union(*beyond) if _has_gradients(node) else frozenset()
    return found


def _has_gradients(node: Any) -> bool:
    value = node.meta.get("val")
    is_whole = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return not is_whole and node.target is not _aten.detach.default


def _is_plain(node: Any) -> bool:
    x, states, params, _, num_layers, _, _, bidirectional, batch_first = node.args
    num_directions = 2 if bidirectional else 1
    is_single = (
        num_layers == 1 and not batch_first and len(params) in (2 * num_directions, 4 * num_directions)
    )
    from_zeros = all(
        one.target is _aten.zeros.default and all(type(size) is int for size in one.args[0]) for one in states
    )
    are_weights = all(one.op == "placeholder" and val(one).dtype == torch.float32 for one in params)
    fits = val(params[1]).shape == (4 * _hidden(node), _hidden(node))  # no projection
    return is_single and from_zeros and are_weights and fits and val(x).dtype == torch.float32


def _hidden(node: Any) -> int:
    return int(val(node.args[1][0]).shape[-1])


def _source(node: Any) -> Hashable:
    """Equal for values that are equal: those made by the same steps of the same value."""
    if node.op == "call_function" and node.target in _SAME_OF_SAME and len(node.all_input_nodes) == 1:
        return (node.target, _source(node.args[0]), str(node.args[1:]), str(node.kwargs))
    return node  # type: ignore[no-any-return]


def _leaves_work(layers: Sequence[Any], num_groups: int, num_cores: int) -> bool:
    """Whether the joined layer can be cut, and slices of its batch are enough for all cores."""
    numels = [int(val(one).numel()) for one in layers[0].args[2]]
    square = numels[1::4] if layers[0].args[3] else numels[1::2]  # with zeros between the blocks
    num_weights = len(layers) * (sum(numels) + (len(layers) - 1) * sum(square))
    if num_weights * val(layers[0].args[2][0]).element_size() > MOST_WEIGHT_BYTES:
        return False
    return batch_rows(layers[0]) // FEWEST_ROWS * num_groups >= num_cores


def _join(graph: Any, layers: Sequence[Any]) -> None:
    """Replaces the layers by one, and their results by parts of its results."""
    first, hidden = layers[0], _hidden(layers[0])
    x, states, params, *rest = first.args
    with graph.inserting_before(first):
        sizes = [*states[0].args[0][:-1], hidden * len(layers)]
        zeros = [new_call(graph, _aten.zeros.default, (sizes,), kwargs=one.kwargs) for one in states]
        weights = wide_weights(
            [layer.args[2] for layer in layers],
            [[int(size) for size in val(one).shape] for one in params],
            partial(_made, graph),
            num_directions=2 if first.args[7] else 1,
        )
        wide = new_call(graph, first.target, (x, zeros, weights, *rest), shapes=shapes_of)
        results = [new_call(graph, operator.getitem, (wide, place)) for place in range(len(val(wide)))]
    for number, layer in enumerate(layers):
        for user in [one for one in layer.users if one.users]:  # getitem, each of them
            with graph.inserting_before(user):
                part = _part(graph, results[user.args[1]], number, hidden, hidden * len(layers))
                is_read_whole = any(each.target not in _TAKE_VIEWS for each in user.users)
                if is_read_whole and part.target is _aten.slice.Tensor:
                    part = new_call(graph, _aten.contiguous.default, (part,))
            user.replace_all_uses_with(part)
        for user in list(layer.users):
            graph.erase_node(user)
        graph.erase_node(layer)


def _part(graph: Any, whole: Any, number: int, hidden: int, width: int) -> Any:
    """A layer's own of a result of the wide one, whose rows hold both directions one after the other."""
    begins = range(number * hidden, int(val(whole).shape[2]), width)
    views = [new_call(graph, _aten.slice.Tensor, (whole, 2, begin, begin + hidden)) for begin in begins]
    return views[0] if len(views) == 1 else new_call(graph, _aten.cat.default, (views, 2))


def _made(graph: Any, target: Any, args: Sequence[Any]) -> Any:
    return new_call(graph, target, tuple(args))
