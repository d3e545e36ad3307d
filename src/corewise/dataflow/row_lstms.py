"""An exported graph whose LSTMs run on the kernel of our own, which takes rows of the batch side by side.

Measured side: standard library and torch only, Python 3.9. The operator takes what torch's takes, and leaves
to torch what is faster there. It reads steps from the last one on as well as from the first: where a model
turns its input around for that, and the result back, neither is needed.
"""

from __future__ import annotations

import operator
from typing import Any, List

import torch

from corewise.dataflow.batch_cuts import writes
from corewise.dataflow.batch_rules import val

_aten = torch.ops.aten


def take_over(graph: Any) -> int:
    """The number of layers that our kernel runs afterwards; it must be loaded."""
    nodes = list(graph.nodes)
    layers = [node for node in nodes if _is_known(node)]
    may_turn = not any(map(writes, nodes))
    for node in layers:
        node.target = torch.ops.corewise.lstm.default
        if may_turn:
            _turn(graph, node)
    graph.lint()
    return len(layers)


def _is_known(node: Any) -> bool:
    """Whether it is an LSTM of float32 that drops nothing and projects nothing."""
    if node.target is not _aten.lstm.input or node.kwargs or len(node.args) != 9:
        return False
    x, states, params, has_biases, num_layers, dropout, train, bidirectional, _ = node.args
    num = num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    are_floats = all(val(one).dtype == torch.float32 for one in (x, *states, *params))
    return are_floats and val(x).dim() == 3 and len(params) == num and not (dropout and train)


def _turn(graph: Any, node: Any) -> None:
    """Has a layer between two turns of its steps read them from the last one on."""
    x, _, _, _, num_layers, _, _, bidirectional, batch_first = node.args
    if num_layers != 1 or bidirectional or not _is_turn(x, batch_first):
        return
    users = list(node.users)
    if not all(user.target is operator.getitem for user in users):
        return
    rows = [user for user in users if user.args[1] == 0]
    turns: List[Any] = [each for one in rows for each in one.users]
    if not turns or not all(_is_turn(each, batch_first) for each in turns):
        return
    node.args = (x.args[0], *node.args[1:], True)
    for each in turns:
        each.replace_all_uses_with(each.args[0])
        graph.erase_node(each)
    if not x.users:
        graph.erase_node(x)


def _is_turn(node: Any, batch_first: bool) -> bool:
    return node.target is _aten.flip.default and list(node.args[1]) == [1 if batch_first else 0]
