"""Replace LSTMs of a traced network by our row-parallel kernel.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import copy
import operator
from typing import Any, List, Mapping, Optional, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from corewise.accelerate.fast_kernels.kernel_support import has_kernels
from corewise.accelerate.fast_kernels.lstm_layer import States, run_lstm_rows
from corewise.accelerate.fast_kernels.use_fast_kernels import use_fast_kernels, uses_fast_kernels
from corewise.accelerate.freeze.lstm_joining import find_unused_name
from corewise.accelerate.freeze.weight_folding import has_hooks


class RowLstm(nn.Module):
    """An LSTM of any depth and direction on our kernel; torch computes what is faster there."""

    def __init__(self, layer: nn.LSTM, reverse: bool) -> None:
        super().__init__()
        # Later changes of the model's layer, or of its mode, have no effect on the copy.
        self.layer = copy.deepcopy(layer)
        self.layer.dropout = 0.0
        use_fast_kernels(self.layer, enabled=False)
        # Whether it runs from the last step to the first.
        self.reverse = reverse
        self.eval()

    def forward(self, x: Any, states: Optional[States] = None) -> Any:
        # The kernel supports neither packed sequences nor a sequence without a batch.
        if not isinstance(x, Tensor) or x.dim() != 3:
            return self._run_in_torch(x, states)
        return run_lstm_rows(self.layer, x, states, self.reverse)

    def _run_in_torch(self, x: Any, states: Optional[States]) -> Any:
        if not self.reverse:
            return self.layer(x, states)
        rows, last = self.layer(torch.flip(x, [0]), states)
        return torch.flip(rows, [0]), last


def can_replace_lstms(network: fx.GraphModule) -> bool:
    """Return whether the network has an LSTM that our kernel supports, and the kernel is available."""
    modules = dict(network.named_modules())
    return any(_find_lstm(node, modules) is not None for node in network.graph.nodes) and has_kernels()


def replace_lstms(network: fx.GraphModule, may_remove_flips: bool) -> int:
    """Replace LSTMs by our kernel and return how many.

    may_remove_flips: Nothing in the network is written in place, so that flips around an LSTM can become a
    reversed one.
    """
    modules = dict(network.named_modules())
    num_replaced = 0
    for node in list(network.graph.nodes):
        layer = _find_lstm(node, modules)
        if layer is not None:
            flips = _find_flips(node, layer) if may_remove_flips else []
            name = find_unused_name(network, f"by_rows_{num_replaced}")
            network.add_submodule(name, RowLstm(layer, reverse=bool(flips)))
            node.target = name
            _remove_flips(network, node, flips)
            num_replaced += 1
    return num_replaced


def can_replace_lstm(layer: nn.LSTM) -> bool:
    """Return whether our kernel is available and supports this layer."""
    return _is_plain_lstm(layer) and has_kernels()


def _is_plain_lstm(layer: nn.LSTM) -> bool:
    """Return whether it is a float32 LSTM with torch's forward, without hooks, projections or computed weights."""
    has_standard_forward = "forward" not in vars(layer) or uses_fast_kernels(layer)
    is_plain = type(layer).forward is nn.LSTM.forward and has_standard_forward and not has_hooks(layer)
    is_float32 = all(weight.dtype == torch.float32 for weight in layer.parameters())
    return is_plain and is_float32 and layer.proj_size == 0 and not is_parametrized(layer)


def _find_lstm(node: fx.Node, modules: Mapping[str, nn.Module]) -> Optional[nn.LSTM]:
    """Find the LSTM that a node calls; None if it has hooks, projections or another forward."""
    layer = modules.get(str(node.target)) if node.op == "call_module" else None
    if not isinstance(layer, nn.LSTM) or not _is_plain_lstm(layer):
        return None
    is_plain_call = len(node.args) in (1, 2) and isinstance(node.args[0], fx.Node) and not node.kwargs
    return layer if is_plain_call else None


def _find_flips(node: fx.Node, layer: nn.LSTM) -> List[fx.Node]:
    """Find the nodes that flip the layer's output back; empty if its input was not flipped."""
    if layer.num_layers > 1 or layer.bidirectional or layer.batch_first or not _is_flip(node.args[0]):
        return []
    users = list(node.users)
    places = [user.args[1] if user.target is operator.getitem else None for user in users]
    if not all(type(place) is int and place in (0, 1) for place in places):
        return []
    flips = [each for user, place in zip(users, places) if place == 0 for each in user.users]
    return flips if all(map(_is_flip, flips)) else []


def _is_flip(node: Any) -> bool:
    is_flip = isinstance(node, fx.Node) and (node.op, node.target) in (
        ("call_function", torch.flip),
        ("call_method", "flip"),
    )
    return is_flip and len(node.args) == 2 and not node.kwargs and node.args[1] in ([0], (0,))


def _remove_flips(network: fx.GraphModule, node: fx.Node, flips: Sequence[fx.Node]) -> None:
    if not flips:
        return
    before: Any = node.args[0]
    node.args = (before.args[0], *node.args[1:])
    for flip in flips:
        flip.replace_all_uses_with(flip.args[0])  # type: ignore[arg-type]
        network.graph.erase_node(flip)
    if not before.users:
        network.graph.erase_node(before)
