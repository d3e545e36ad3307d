"""An exported graph cut along the batch from its inputs on, each slice for a team of its own.

Measured side: standard library and torch only, Python 3.9. Threads that share an operator meet after each one
of them; slices of a batch meet once, at the end. Each team reads all weights, so that an operator which has
little to do for each of them stays whole, as does what follows it.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import torch
from torch.fx.node import map_arg

from corewise.dataflow import operators
from corewise.dataflow.batch_cuts import MOST_WEIGHT_BYTES, ORIGIN, Cutting, borders_of, writes
from corewise.dataflow.batch_rules import val
from corewise.dataflow.winograd_rule import tile_of

_aten = torch.ops.aten
_LEAST_USES = 16  # of each weight by a slice, where weights do not stay in a core's own cache
_WINOGRAD = "winograd_convolution"
_WEIGHTED = {
    *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d"),
    *("_convolution_pointwise", "_linear_pointwise", _WINOGRAD),  # whose weights are packed
}


def slices_for(num_rows: int, num_cores: int) -> int:
    """Into how many slices: one for each core, or as many as share the cores evenly; 1: it is not cut."""
    if num_rows >= 4 * num_cores or num_rows % num_cores == 0:
        return num_cores
    fitting = [num for num in range(2, num_cores + 1) if num_rows % num == 0 and num_cores % num == 0]
    return max(fitting, default=1)


def cut_inputs(graph: Any, inputs: Sequence[Any], num_cores: int) -> int:
    """The number of slices the graph was cut into, 0 where it could not be; it may be changed even then.

    inputs: the nodes of what callers bring.
    """
    tensors = [node for node in inputs if _is_tensor(node) and val(node).dim() > 0]
    num_rows = int(val(tensors[0]).shape[0]) if tensors else 0
    num = slices_for(num_rows, num_cores)
    if num < 2 or not _without_writes(graph):
        return 0
    roots = {node: 0 for node in tensors if val(node).shape[0] == num_rows}
    _WholeCutting(graph, num_rows, num, roots).run(list(graph.nodes))
    return num if any(ORIGIN in node.meta for node in graph.nodes) else 0


class _WholeCutting(Cutting):
    """Begins at the inputs."""

    def __init__(self, graph: Any, num_rows: int, num: int, roots: Dict[Any, int]) -> None:
        super().__init__(graph, borders_of(num_rows, num), ())
        self._given = roots

    def roots(self, nodes: Sequence[Any]) -> Dict[Any, int]:
        """The inputs."""
        return self._given

    def may_cut(self, node: Any) -> bool:
        """Whether a slice uses the weights often enough for every team to read them."""
        name = node.target._schema.name.partition("::")[2]
        if name not in _WEIGHTED:
            return True
        weight = val(node.args[1])
        num_outputs = weight.shape[0]
        uses = val(node).numel() // max(1, num_outputs) // len(self.borders)
        if name == _WINOGRAD:
            uses //= tile_of(node.args[3]) ** 2
        return bool(uses >= _LEAST_USES or weight.numel() * weight.element_size() <= MOST_WEIGHT_BYTES)


def _without_writes(graph: Any) -> bool:
    """Has operators that write to what nobody else sees return it instead; False where others write."""
    for node in list(graph.nodes):
        if not writes(node):
            continue
        pure = _pure(node.target)
        written = node.args[0] if node.args else None
        if pure is None or not isinstance(written, torch.fx.Node) or not _is_own(written, node):
            return False
        if not _gives_alike(pure, node):
            return False
        node.target = pure
    graph.lint()
    return True


def _pure(target: Any) -> Optional[Any]:
    """The operator that does the same and writes to nothing but its result."""
    name = target._schema.name.partition("::")[2]
    written = [place for place, one in enumerate(target._schema.arguments) if one.alias_info is not None]
    is_plain = name.endswith("_") and not name.endswith("__") and written == [0]
    packet = getattr(_aten, name[:-1], None) if is_plain and target.namespace == "aten" else None
    overload = target._overloadname
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else None


def _gives_alike(pure: Any, node: Any) -> bool:
    """Whether the operator's result is of the type that is written to; a wider one would not wrap around."""
    args, kwargs = map_arg(node.args, val), map_arg(node.kwargs, val)
    result, written = pure(*args, **kwargs), val(node)
    return bool(result.dtype == written.dtype and result.shape == written.shape)


def _is_own(node: Any, user: Any) -> bool:
    """Whether nobody but this user sees the memory a value lies in."""
    if node.op != "call_function" or list(node.users) != [user] or not _is_tensor(node):
        return False
    tensors = [one for one in node.all_input_nodes if _is_tensor(one)]
    passes_on = operators.passes_on(node.target, node.args, node.kwargs)
    shared = [one for one in tensors if passes_on or _storage(one) == _storage(node)]
    is_view = any(one.alias_info is not None for one in node.target._schema.returns)
    return (bool(shared) or not is_view) and all(_is_own(one, node) for one in shared)


def _is_tensor(node: Any) -> bool:
    return isinstance(val(node), torch.Tensor)


def _storage(node: Any) -> int:
    return int(val(node).untyped_storage()._cdata)
