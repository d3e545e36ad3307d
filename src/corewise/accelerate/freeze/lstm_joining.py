"""Join LSTMs of a traced network that read the same input into one wider layer.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from corewise.accelerate.fast_kernels.wide_lstm import (
    build_wide_weights,
    call_operator,
    choose_group_sizes,
    count_vector_lanes,
)
from corewise.accelerate.freeze.weight_folding import has_hooks

# Applied to equal values, these give equal values.
_PURE_VIEWS = (torch.flip, "flip", torch.transpose, "transpose", torch.permute, "permute", "contiguous")
# These read any memory layout equally well.
_ANY_LAYOUT = (torch.flip, "flip", torch.cat, torch.stack, torch.sum, "sum", torch.mean, "mean", "contiguous")
LstmResult = Tuple[Any, Tuple[Tensor, Tensor]]


class JoinedLstm(nn.Module):
    """Several LSTMs over one input as one wide LSTM; returns the result of each, in order."""

    def __init__(self, layers: Sequence[nn.LSTM], as_views: Sequence[bool]) -> None:
        super().__init__()
        first = layers[0]
        self.layers, self.as_views, self.hidden = nn.ModuleList(layers), tuple(as_views), first.hidden_size
        self.wide = nn.LSTM(
            first.input_size,
            first.hidden_size * len(layers),
            bias=first.bias,
            batch_first=first.batch_first,
            bidirectional=first.bidirectional,
            # On this device no initial weights are drawn.
            device="meta",
        )
        weights = [[each.detach() for group in layer.all_weights for each in group] for layer in layers]
        shapes = [list(each.shape) for each in weights[0]]
        made = build_wide_weights(weights, shapes, call_operator, num_directions=2 if first.bidirectional else 1)
        for (name, _), value in zip(list(self.wide.named_parameters()), made):
            setattr(self.wide, name, nn.Parameter(value.contiguous(), requires_grad=False))
        self.eval()

    def forward(self, x: Any) -> List[LstmResult]:
        # A packed sequence has its own row layout.
        if not isinstance(x, Tensor):
            return [layer(x) for layer in self.layers]
        rows, states = self.wide(x)
        # In memory, the steps come first even with batch_first.
        is_transposed = self.wide.batch_first and rows.dim() == 3
        if is_transposed:
            rows = rows.transpose(0, 1)
        parts = [self._extract_part(rows, i, is_view) for i, is_view in enumerate(self.as_views)]
        if is_transposed:
            parts = [part.transpose(0, 1) for part in parts]
        return [
            (part, (self._extract_part(states[0], i), self._extract_part(states[1], i))) for i, part in enumerate(parts)
        ]

    def _extract_part(self, value: Tensor, number: int, is_view: bool = False) -> Tensor:
        # One part for each direction.
        begins = range(number * self.hidden, value.shape[-1], self.wide.hidden_size)
        parts = [value[..., begin : begin + self.hidden] for begin in begins]
        if len(parts) > 1:
            return torch.cat(parts, -1)
        return parts[0] if is_view else parts[0].clone(memory_format=torch.contiguous_format)


def join_lstms(network: fx.GraphModule) -> int:
    """Join LSTMs into wider ones and return how many; the network must not write in place."""
    modules = dict(network.named_modules())
    num_joined = 0
    for group in _group_lstms(network, modules):
        hidden = _get_lstm(group[0], modules).hidden_size
        for size in choose_group_sizes(len(group), hidden, count_vector_lanes()):
            nodes, group = group[:size], group[size:]
            if size > 1:
                _join(network, nodes, [_get_lstm(node, modules) for node in nodes])
                num_joined += size
    for node in reversed(list(network.graph.nodes)):
        if num_joined and _is_call_of(_PURE_VIEWS, node) and not node.users:
            network.graph.erase_node(node)
    return num_joined


def _group_lstms(network: fx.GraphModule, modules: Mapping[str, nn.Module]) -> List[List[fx.Node]]:
    """Group the LSTMs of equal options that read the same value."""
    groups: Dict[Hashable, List[fx.Node]] = {}
    for node in network.graph.nodes:
        layer = _find_plain_lstm(node, modules)
        if layer is not None:
            options = (layer.input_size, layer.hidden_size, layer.bias, layer.batch_first, layer.bidirectional)
            groups.setdefault((_identify_source(node.args[0]), *options), []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _find_plain_lstm(node: fx.Node, modules: Mapping[str, nn.Module]) -> Optional[nn.LSTM]:
    """Find the single-layer float32 LSTM that a node calls with an initial state of zeros."""
    layer = modules.get(str(node.target)) if node.op == "call_module" else None
    if not isinstance(layer, nn.LSTM) or type(layer).forward is not nn.LSTM.forward:
        return None
    is_single = layer.num_layers == 1 and layer.proj_size == 0
    is_plain_call = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs
    is_plain = not has_hooks(layer) and not is_parametrized(layer) and "forward" not in vars(layer)
    weights = [weight for group in layer.all_weights for weight in group]
    is_float32 = all(weight.dtype == torch.float32 for weight in weights)
    if not (is_single and is_plain_call and is_plain and is_float32):
        return None
    # Zero times NaN or infinity is NaN, which would spread to the other layers.
    is_finite = all(bool(weight.isfinite().all()) for weight in weights)
    return layer if is_finite else None


def _get_lstm(node: fx.Node, modules: Mapping[str, nn.Module]) -> nn.LSTM:
    layer = modules[str(node.target)]
    assert isinstance(layer, nn.LSTM)
    return layer


def _identify_source(node: Any) -> Hashable:
    """Return a key that is equal for equal values: the same views of the same value."""
    is_view = isinstance(node, fx.Node) and _is_call_of(_PURE_VIEWS, node)
    if is_view and node.args and node.all_input_nodes == [node.args[0]]:
        return (node.target, _identify_source(node.args[0]), str(node.args[1:]), str(node.kwargs))
    return node  # type: ignore[no-any-return]


def _is_call_of(functions: Sequence[Any], node: fx.Node) -> bool:
    """Return whether the node calls one of these; modules and inputs may have such names too."""
    return node.op in ("call_function", "call_method") and node.target in functions


def find_unused_name(network: fx.GraphModule, wanted: str) -> str:
    """Find a name for a new submodule."""
    name, number = wanted, 0
    while hasattr(network, name):
        name, number = f"{wanted}_{number}", number + 1
    return name


def _join(network: fx.GraphModule, nodes: Sequence[fx.Node], layers: Sequence[nn.LSTM]) -> None:
    graph, name = network.graph, find_unused_name(network, "joined")
    network.add_submodule(name, JoinedLstm(layers, [_is_read_as_view(node) for node in nodes]))
    with graph.inserting_before(nodes[0]):
        wide = graph.call_module(name, (nodes[0].args[0],))
        parts = [graph.call_function(operator.getitem, (wide, place)) for place in range(len(nodes))]
    for node, part in zip(nodes, parts):
        node.replace_all_uses_with(part)
        graph.erase_node(node)


def _is_read_as_view(node: fx.Node) -> bool:
    """Return whether all readers of the layer's rows accept any memory layout."""
    parts = [user for user in node.users if user.target is operator.getitem]
    if len(parts) < len(node.users):
        return False
    # Item 1 is the states.
    rows = [user for user in parts if user.args[1] not in (1, -1)]
    return all(_is_call_of(_ANY_LAYOUT, reader) for user in rows for reader in user.users)
