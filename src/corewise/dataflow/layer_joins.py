"""An exported graph with small recurrent layers over one input joined into wider ones.

Measured side: standard library and torch only, Python 3.9. A vector of the processor holds sixteen numbers
(eight without AVX-512): an LSTM of ten hidden units leaves six of them idle in every gate, and each of its
steps costs as much to begin as a wide one's. Layers that read the same input become one layer whose recurrent
weights are the layers' own in blocks, zeros between them. Zeros add nothing: the results are the same numbers
up to the order in which they are added up. The wide layer is cut along its batch afterwards, so that every
core has work.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, Hashable, Iterable, List, Sequence, Tuple

import torch

from corewise.dataflow.batch_cuts import FEWEST_ROWS, is_cuttable, new_call, writes
from corewise.dataflow.batch_rules import val
from corewise.dataflow.recurrent import shapes_of

_aten = torch.ops.aten
_GATES = 4
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
# A step of an LSTM by its hidden units, in units of no matter: what it costs to begin one, and what a lane of
# its vectors costs, more where products are longer. From times of 10 to 80 units on one core with AVX-512.
_STEP, _UNIT, _PER_UNIT = 8.7, 0.79, 0.00875
_WORTH = 0.85  # of the time of the layers by themselves


def join(graph: Any, num_cores: int, num_lanes: int = 0) -> int:
    """The number of layers that were joined, where that is sound and likely to help."""
    nodes = list(graph.nodes)
    groups = _groups(nodes)
    if not groups or any(writes(node) for node in nodes):
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


def vector_lanes() -> int:
    """How many numbers of float32 a vector of this processor holds."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability().upper() else 8


def sizes_joined(num_layers: int, hidden: int, num_lanes: int) -> List[int]:
    """How many of these layers become one each time; all 1: they stay as they are."""
    apart = [1] * num_layers
    ways = [_equal_parts(num_layers, num) for num in range(num_layers, 0, -1)]
    best = min(ways, key=lambda sizes: _cost(sizes, hidden, num_lanes))
    is_worth = _cost(best, hidden, num_lanes) <= _WORTH * _cost(apart, hidden, num_lanes)
    return best if is_worth else apart


def _equal_parts(total: int, num: int) -> List[int]:
    return [total * (part + 1) // num - total * part // num for part in range(num)]


def _cost(sizes: Sequence[int], hidden: int, num_lanes: int) -> float:
    """Of a step of all layers."""
    widths = [size * hidden for size in sizes]
    padded = [-(-width // num_lanes) * num_lanes for width in widths]
    return sum(_STEP + pad * (_UNIT + _PER_UNIT * width) for width, pad in zip(widths, padded))


def _groups(nodes: Iterable[Any]) -> List[List[Any]]:
    """Recurrent layers alike in all but their weights, over equal inputs and from states of zeros."""
    found: Dict[Hashable, List[Any]] = {}
    for node in nodes:
        if is_cuttable(node) and node.target is _aten.lstm.input and _is_plain(node):
            x, _, params, *rest = node.args
            shapes = tuple(tuple(val(one).shape) for one in params)
            found.setdefault((_source(x), shapes, str(node.args[1][0].kwargs), *rest), []).append(node)
    return [group for group in found.values() if len(group) > 1]


def _is_plain(node: Any) -> bool:
    x, states, params, _, num_layers, _, _, bidirectional, batch_first = node.args
    is_single = num_layers == 1 and not bidirectional and not batch_first and len(params) in (2, 4)
    from_zeros = all(
        one.target is _aten.zeros.default and all(type(size) is int for size in one.args[0]) for one in states
    )
    are_weights = all(one.op == "placeholder" and val(one).dtype == torch.float32 for one in params)
    fits = val(params[1]).shape == (_GATES * _hidden(node), _hidden(node))  # no projection
    return is_single and from_zeros and are_weights and fits and val(x).dtype == torch.float32


def _hidden(node: Any) -> int:
    return int(val(node.args[1][0]).shape[-1])


def _source(node: Any) -> Hashable:
    """Equal for values that are equal: those made by the same steps of the same value."""
    if node.op == "call_function" and node.target in _SAME_OF_SAME and len(node.all_input_nodes) == 1:
        return (node.target, _source(node.args[0]), str(node.args[1:]), str(node.kwargs))
    return node  # type: ignore[no-any-return]


def _leaves_work(layers: Sequence[Any], num_groups: int, num_cores: int) -> bool:
    """Whether slices of the joined layers' batch are enough for all cores."""
    num_rows = int(val(layers[0].args[0]).shape[1])
    return num_rows // FEWEST_ROWS * num_groups >= num_cores


def _join(graph: Any, layers: Sequence[Any]) -> None:
    """Replaces the layers by one, and their results by parts of its results."""
    first, hidden = layers[0], _hidden(layers[0])
    x, states, _, *rest = first.args
    with graph.inserting_before(first):
        sizes = [*states[0].args[0][:-1], hidden * len(layers)]
        zeros = [new_call(graph, _aten.zeros.default, (sizes,), kwargs=one.kwargs) for one in states]
        weights = [
            _in_blocks(graph, own) if place == 1 else _in_rows(graph, own)
            for place, own in enumerate(zip(*(layer.args[2] for layer in layers)))
        ]
        wide = new_call(graph, first.target, (x, zeros, weights, *rest), shapes=shapes_of)
        results = [new_call(graph, operator.getitem, (wide, place)) for place in range(len(val(wide)))]
    for number, layer in enumerate(layers):
        for user in [one for one in layer.users if one.users]:  # getitem, each of them
            with graph.inserting_before(user):
                own = (results[user.args[1]], 2, number * hidden, (number + 1) * hidden)
                part = new_call(graph, _aten.slice.Tensor, own)
                if any(each.target not in _TAKE_VIEWS for each in user.users):
                    part = new_call(graph, _aten.contiguous.default, (part,))
            user.replace_all_uses_with(part)
        for user in list(layer.users):
            graph.erase_node(user)
        graph.erase_node(layer)


def _in_rows(graph: Any, own: Sequence[Any]) -> Any:
    """Weights of the input or biases: of each gate those of the first layer, then those of the second."""
    stacked, (num_rows, *rest) = _stacked(graph, own)
    order = [1, 0, *range(2, 3 + len(rest))]
    gates = new_call(graph, _aten.permute.default, (stacked, order))
    return new_call(graph, _aten.reshape.default, (gates, [len(own) * num_rows, *rest]))


def _in_blocks(graph: Any, own: Sequence[Any]) -> Any:
    """Recurrent weights: of each gate a square of blocks, those of the layers along its diagonal."""
    stacked, (num_rows, hidden) = _stacked(graph, own)
    last = new_call(graph, _aten.permute.default, (stacked, [1, 2, 3, 0]))  # gate, row, column, layer
    apart = new_call(graph, _aten.diag_embed.default, (last,))  # and the layer again
    square = new_call(graph, _aten.permute.default, (apart, [0, 3, 1, 4, 2]))
    return new_call(graph, _aten.reshape.default, (square, [len(own) * num_rows, len(own) * hidden]))


def _stacked(graph: Any, own: Sequence[Any]) -> Tuple[Any, Tuple[int, ...]]:
    """The layers' weights by layer and gate, and the shape of one layer's."""
    num_rows, *rest = (int(size) for size in val(own[0]).shape)
    stacked = new_call(graph, _aten.stack.default, (list(own),))
    sizes = [len(own), _GATES, num_rows // _GATES, *rest]
    return new_call(graph, _aten.view.default, (stacked, sizes)), (num_rows, *rest)
