"""LSTMs of a traced network on the kernel of our own.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import copy
import operator
from typing import Any, List, Mapping, Optional, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from corewise.runtimes.torch.freezing import has_hooks
from corewise.runtimes.torch.joined_lstms import unused_name
from corewise.runtimes.torch.lstm_kernel import States, by_rows
from corewise.runtimes.torch.own_kernels import has_kernel
from corewise.runtimes.torch.quickened import is_quickened, quicken


class RowLstm(nn.Module):
    """A layer of any depth and direction; it leaves to torch what is faster there."""

    def __init__(self, layer: nn.LSTM, reverse: bool) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)  # what becomes of the model's own is not seen here
        self.layer.dropout = 0.0  # nor what becomes of its mode
        quicken(self.layer, enabled=False)
        self.reverse = reverse  # from the last step to the first
        self.eval()

    def forward(self, x: Any, states: Optional[States] = None) -> Any:
        if not isinstance(x, Tensor) or x.dim() != 3:  # packed sequences, and sequences without a batch
            return self._by_torch(x, states)
        return by_rows(self.layer, x, states, self.reverse)

    def _by_torch(self, x: Any, states: Optional[States]) -> Any:
        if not self.reverse:
            return self.layer(x, states)
        rows, last = self.layer(torch.flip(x, [0]), states)
        return torch.flip(rows, [0]), last


def can_take_over(network: fx.GraphModule) -> bool:
    """Whether there is a layer that our kernel may be for, and the kernel."""
    modules = dict(network.named_modules())
    return any(_layer(node, modules) is not None for node in network.graph.nodes) and has_kernel()


def take_over(network: fx.GraphModule, may_turn: bool) -> int:
    """How many layers our kernel runs afterwards; may_turn: whether nothing in the network is written to."""
    modules = dict(network.named_modules())
    num = 0
    for node in list(network.graph.nodes):
        layer = _layer(node, modules)
        if layer is not None:
            turns = _turns(node, layer) if may_turn else []
            name = unused_name(network, f"by_rows_{num}")
            network.add_submodule(name, RowLstm(layer, reverse=bool(turns)))
            node.target = name
            _leave_out(network, node, turns)
            num += 1
    return num


def _layer(node: fx.Node, modules: Mapping[str, nn.Module]) -> Optional[nn.LSTM]:
    """The LSTM that a node calls, where nothing else happens there."""
    layer = modules.get(str(node.target)) if node.op == "call_module" else None
    if not isinstance(layer, nn.LSTM) or type(layer).forward is not nn.LSTM.forward:
        return None
    is_called = len(node.args) in (1, 2) and isinstance(node.args[0], fx.Node) and not node.kwargs
    is_plain = "forward" not in vars(layer) or is_quickened(layer)
    is_own = not has_hooks(layer) and not is_parametrized(layer) and is_plain
    are_floats = all(weight.dtype == torch.float32 for weight in layer.parameters())
    return layer if layer.proj_size == 0 and is_called and is_own and are_floats else None


def _turns(node: fx.Node, layer: nn.LSTM) -> List[fx.Node]:
    """What turns the layer's rows around again, where its input was turned for it; empty where not so."""
    if layer.num_layers > 1 or layer.bidirectional or layer.batch_first or not _is_turn(node.args[0]):
        return []
    users = list(node.users)
    places = [user.args[1] if user.target is operator.getitem else None for user in users]
    if not all(type(place) is int and place in (0, 1) for place in places):
        return []
    turns = [each for user, place in zip(users, places) if place == 0 for each in user.users]
    return turns if all(map(_is_turn, turns)) else []


def _is_turn(node: Any) -> bool:
    is_flip = isinstance(node, fx.Node) and (node.op, node.target) in (
        ("call_function", torch.flip),
        ("call_method", "flip"),
    )
    return is_flip and len(node.args) == 2 and not node.kwargs and node.args[1] in ([0], (0,))


def _leave_out(network: fx.GraphModule, node: fx.Node, turns: Sequence[fx.Node]) -> None:
    if not turns:
        return
    before: Any = node.args[0]
    node.args = (before.args[0], *node.args[1:])
    for turn in turns:
        turn.replace_all_uses_with(turn.args[0])  # type: ignore[arg-type]
        network.graph.erase_node(turn)
    if not before.users:
        network.graph.erase_node(before)
