"""LSTMs of a traced network that read the same input, made one wider layer.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import operator
from typing import Any, Dict, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.parametrize import is_parametrized

from corewise.dataflow.wide_lstm import called, sizes_joined, vector_lanes, wide_weights
from corewise.runtimes.torch.freezing import has_hooks

_SAME_OF_SAME = (torch.flip, "flip", torch.transpose, "transpose", torch.permute, "permute", "contiguous")
_TAKE_VIEWS = (torch.flip, "flip", torch.cat, torch.stack, torch.sum, "sum", torch.mean, "mean", "contiguous")
Result = Tuple[Any, Tuple[Tensor, Tensor]]  # of an LSTM


class JoinedLstm(nn.Module):
    """Layers over one input as one; gives what each of them gives, in their order."""

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
            device="meta",  # no numbers are drawn for it
        )
        weights = [[each.detach() for way in layer.all_weights for each in way] for layer in layers]
        shapes = [list(each.shape) for each in weights[0]]
        made = wide_weights(weights, shapes, called, num_directions=2 if first.bidirectional else 1)
        for (name, _), value in zip(list(self.wide.named_parameters()), made):
            setattr(self.wide, name, nn.Parameter(value.contiguous(), requires_grad=False))
        self.eval()

    def forward(self, x: Any) -> List[Result]:
        if not isinstance(x, Tensor):  # a packed sequence has rows of its own
            return [layer(x) for layer in self.layers]
        rows, states = self.wide(x)
        is_turned = self.wide.batch_first and rows.dim() == 3  # in memory the steps come first all the same
        if is_turned:
            rows = rows.transpose(0, 1)
        parts = [self._part(rows, i, is_view) for i, is_view in enumerate(self.as_views)]
        if is_turned:
            parts = [part.transpose(0, 1) for part in parts]
        return [(part, (self._part(states[0], i), self._part(states[1], i))) for i, part in enumerate(parts)]

    def _part(self, value: Tensor, number: int, is_view: bool = False) -> Tensor:
        begins = range(number * self.hidden, value.shape[-1], self.wide.hidden_size)  # of both directions
        parts = [value[..., begin : begin + self.hidden] for begin in begins]
        if len(parts) > 1:
            return torch.cat(parts, -1)
        return parts[0] if is_view else parts[0].clone(memory_format=torch.contiguous_format)


def join_lstms(network: fx.GraphModule) -> int:
    """How many layers of a network became parts of wider ones; nothing in it may be written to."""
    modules = dict(network.named_modules())
    num_joined = 0
    for group in _groups(network, modules):
        hidden = _layer(group[0], modules).hidden_size
        for size in sizes_joined(len(group), hidden, vector_lanes()):
            nodes, group = group[:size], group[size:]
            if size > 1:
                _join(network, nodes, [_layer(node, modules) for node in nodes])
                num_joined += size
    for node in reversed(list(network.graph.nodes)):
        if num_joined and _calls_one_of(_SAME_OF_SAME, node) and not node.users:
            network.graph.erase_node(node)
    return num_joined


def _groups(network: fx.GraphModule, modules: Mapping[str, nn.Module]) -> List[List[fx.Node]]:
    found: Dict[Hashable, List[fx.Node]] = {}
    for node in network.graph.nodes:
        layer = _plain_lstm(node, modules)
        if layer is not None:
            alike = (layer.input_size, layer.hidden_size, layer.bias, layer.batch_first, layer.bidirectional)
            found.setdefault((_source(node.args[0]), *alike), []).append(node)
    return [group for group in found.values() if len(group) > 1]


def _plain_lstm(node: fx.Node, modules: Mapping[str, nn.Module]) -> Optional[nn.LSTM]:
    """The layer a node calls from a state of zeros, where it is a single one of float32."""
    layer = modules.get(str(node.target)) if node.op == "call_module" else None
    if not isinstance(layer, nn.LSTM) or type(layer).forward is not nn.LSTM.forward:
        return None
    is_single = layer.num_layers == 1 and layer.proj_size == 0
    is_called = len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs
    is_own = not has_hooks(layer) and not is_parametrized(layer) and "forward" not in vars(layer)
    weights = [weight for way in layer.all_weights for weight in way]
    is_short = all(weight.dtype == torch.float32 for weight in weights)
    if not (is_single and is_called and is_own and is_short):
        return None
    # Zero times no number is none: what one layer lacks would be lacking in all.
    are_numbers = all(bool(weight.isfinite().all()) for weight in weights)
    return layer if are_numbers else None


def _layer(node: fx.Node, modules: Mapping[str, nn.Module]) -> nn.LSTM:
    layer = modules[str(node.target)]
    assert isinstance(layer, nn.LSTM)
    return layer


def _source(node: Any) -> Hashable:
    """Equal for values that are equal: those made by the same steps of the same value."""
    is_made = isinstance(node, fx.Node) and _calls_one_of(_SAME_OF_SAME, node)
    if is_made and node.args and node.all_input_nodes == [node.args[0]]:
        return (node.target, _source(node.args[0]), str(node.args[1:]), str(node.kwargs))
    return node  # type: ignore[no-any-return]


def _calls_one_of(known: Sequence[Any], node: fx.Node) -> bool:
    """Whether it calls one of these functions and methods: modules and inputs may bear such names too."""
    return node.op in ("call_function", "call_method") and node.target in known


def unused_name(network: fx.GraphModule, wanted: str) -> str:
    """A name for a new part of a network that has none of it."""
    name, number = wanted, 0
    while hasattr(network, name):
        name, number = f"{wanted}_{number}", number + 1
    return name


def _join(network: fx.GraphModule, nodes: Sequence[fx.Node], layers: Sequence[nn.LSTM]) -> None:
    graph, name = network.graph, unused_name(network, "joined")
    network.add_submodule(name, JoinedLstm(layers, [_is_read_as_view(node) for node in nodes]))
    with graph.inserting_before(nodes[0]):
        wide = graph.call_module(name, (nodes[0].args[0],))
        parts = [graph.call_function(operator.getitem, (wide, place)) for place in range(len(nodes))]
    for node, part in zip(nodes, parts):
        node.replace_all_uses_with(part)
        graph.erase_node(node)


def _is_read_as_view(node: fx.Node) -> bool:
    """Whether nobody who reads the layer's rows minds how they lie in memory."""
    parts = [user for user in node.users if user.target is operator.getitem]
    if len(parts) < len(node.users):
        return False
    rows = [user for user in parts if user.args[1] not in (1, -1)]  # the states
    return all(_calls_one_of(_TAKE_VIEWS, reader) for user in rows for reader in user.users)
