"""Replace the LSTMs of an exported graph by our kernel, which processes batch rows side by side.

Measured side: standard library and torch only, Python 3.9. The operator takes torch's arguments, and calls
torch where that is faster. It can read the steps in reverse, so flips before and after it are removed.
"""

from __future__ import annotations

import operator
from typing import Any, List

import torch

from corewise.accelerate.capture.graph_nodes import get_value, is_mutating

_aten = torch.ops.aten


def replace_lstms(graph: Any) -> int:
    """Replace LSTMs by our kernel, which must be loaded; return their number."""
    nodes = list(graph.nodes)
    layers = [node for node in nodes if _is_supported(node)]
    can_fold = not any(map(is_mutating, nodes))
    for node in layers:
        node.target = torch.ops.corewise.lstm.default
        if can_fold:
            _fold_flips(graph, node)
    graph.lint()
    return len(layers)


def _is_supported(node: Any) -> bool:
    """Return whether it is a float32 LSTM without dropout and projection."""
    if node.target is not _aten.lstm.input or node.kwargs or len(node.args) != 9:
        return False
    x, states, params, has_biases, num_layers, dropout, train, bidirectional, _ = node.args
    num_params = num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    is_float = all(get_value(one).dtype == torch.float32 for one in (x, *states, *params))
    return is_float and get_value(x).dim() == 3 and len(params) == num_params and not (dropout and train)


def _fold_flips(graph: Any, node: Any) -> None:
    """Remove the flips before and after a layer, and let it read the steps in reverse."""
    x, _, _, _, num_layers, _, _, bidirectional, batch_first = node.args
    if num_layers != 1 or bidirectional or not _is_flip(x, batch_first):
        return
    users = list(node.users)
    if not all(user.target is operator.getitem for user in users):
        return
    rows = [user for user in users if user.args[1] == 0]
    flips: List[Any] = [each for one in rows for each in one.users]
    if not flips or not all(_is_flip(each, batch_first) for each in flips):
        return
    node.args = (x.args[0], *node.args[1:], True)
    for each in flips:
        each.replace_all_uses_with(each.args[0])
        graph.erase_node(each)
    if not x.users:
        graph.erase_node(x)


def _is_flip(node: Any, batch_first: bool) -> bool:
    return node.target is _aten.flip.default and list(node.args[1]) == [1 if batch_first else 0]
