"""Cut an exported graph along the batch from its inputs on, one slice per team.

Measured side: standard library and torch only, Python 3.9. Threads that share operators synchronize after
each of them; slices of a batch synchronize once, at the end. Each team reads all weights, so an operator with
little work per weight stays whole, and so do the operators after it.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import torch
from torch.fx.node import map_arg

from corewise.accelerate.capture import operator_effects
from corewise.accelerate.capture.graph_nodes import get_value, is_mutating
from corewise.accelerate.fast_kernels.winograd_rule import compute_tile_size
from corewise.accelerate.malleable.capture.batch_cuts import (
    MAX_WEIGHT_BYTES,
    ORIGIN_META,
    BatchCutter,
    compute_slice_bounds,
)

_aten = torch.ops.aten
# Minimum uses of each weight by a slice, if the weights do not fit a core's cache.
_MIN_WEIGHT_USES = 16
_WINOGRAD = "winograd_convolution"
_WEIGHTED = {
    *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d"),
    # Operators on packed weights.
    *("_convolution_pointwise", "_linear_pointwise", _WINOGRAD),
}


def choose_num_slices(num_rows: int, num_cores: int) -> int:
    """Choose the number of slices: one per core, or a divisor of the cores; 1 means that it is not cut."""
    if num_rows >= 4 * num_cores or num_rows % num_cores == 0:
        return num_cores
    fitting = [num for num in range(2, num_cores + 1) if num_rows % num == 0 and num_cores % num == 0]
    return max(fitting, default=1)


def cut_inputs(graph: Any, inputs: Sequence[Any], num_cores: int) -> int:
    """Cut the graph; return the number of slices or 0 if impossible. The graph may change even then.

    inputs: the nodes of the caller's inputs.
    """
    tensors = [node for node in inputs if _is_tensor(node) and get_value(node).dim() > 0]
    num_rows = int(get_value(tensors[0]).shape[0]) if tensors else 0
    num = choose_num_slices(num_rows, num_cores)
    if num < 2 or not _remove_writes(graph):
        return 0
    roots = {node: 0 for node in tensors if get_value(node).shape[0] == num_rows}
    _WholeBatchCutter(graph, num_rows, num, roots).run(list(graph.nodes))
    return num if any(ORIGIN_META in node.meta for node in graph.nodes) else 0


class _WholeBatchCutter(BatchCutter):
    """Starts at the inputs."""

    def __init__(self, graph: Any, num_rows: int, num: int, roots: Dict[Any, int]) -> None:
        super().__init__(graph, compute_slice_bounds(num_rows, num), ())
        self._input_roots = roots

    def find_roots(self, nodes: Sequence[Any]) -> Dict[Any, int]:
        """Return the inputs."""
        return self._input_roots

    def should_cut(self, node: Any) -> bool:
        """Return whether a slice uses the weights often enough for every team to read them."""
        name = node.target._schema.name.partition("::")[2]
        if name not in _WEIGHTED:
            return True
        weight = get_value(node.args[1])
        num_outputs = weight.shape[0]
        uses = get_value(node).numel() // max(1, num_outputs) // len(self.borders)
        if name == _WINOGRAD:
            uses //= compute_tile_size(node.args[3]) ** 2
        return bool(uses >= _MIN_WEIGHT_USES or weight.numel() * weight.element_size() <= MAX_WEIGHT_BYTES)


def _remove_writes(graph: Any) -> bool:
    """Replace in-place operators on private values by pure ones; return False if other writes remain."""
    for node in list(graph.nodes):
        if not is_mutating(node):
            continue
        pure = _find_pure_operator(node.target)
        written = node.args[0] if node.args else None
        if pure is None or not isinstance(written, torch.fx.Node) or not _is_private(written, node):
            return False
        if not _has_same_result_type(pure, node):
            return False
        node.target = pure
    graph.lint()
    return True


def _find_pure_operator(target: Any) -> Optional[Any]:
    """Find the operator that does the same without writing to its arguments."""
    name = target._schema.name.partition("::")[2]
    written = [index for index, argument in enumerate(target._schema.arguments) if argument.alias_info is not None]
    is_in_place = name.endswith("_") and not name.endswith("__") and written == [0]
    packet = getattr(_aten, name[:-1], None) if is_in_place and target.namespace == "aten" else None
    overload = target._overloadname
    return getattr(packet, overload) if packet is not None and overload in packet.overloads() else None


def _has_same_result_type(pure: Any, node: Any) -> bool:
    """Return whether the pure result has the written type; a wider type would not wrap around."""
    args, kwargs = map_arg(node.args, get_value), map_arg(node.kwargs, get_value)
    result, written = pure(*args, **kwargs), get_value(node)
    return bool(result.dtype == written.dtype and result.shape == written.shape)


def _is_private(node: Any, user: Any) -> bool:
    """Return whether only this user reads the memory of a value."""
    if node.op != "call_function" or list(node.users) != [user] or not _is_tensor(node):
        return False
    tensors = [one for one in node.all_input_nodes if _is_tensor(one)]
    is_identity = operator_effects.is_identity_call(node.target, node.args, node.kwargs)
    shared = [one for one in tensors if is_identity or _get_storage(one) == _get_storage(node)]
    is_view = any(one.alias_info is not None for one in node.target._schema.returns)
    return (bool(shared) or not is_view) and all(_is_private(one, node) for one in shared)


def _is_tensor(node: Any) -> bool:
    return isinstance(get_value(node), torch.Tensor)


def _get_storage(node: Any) -> int:
    return int(get_value(node).untyped_storage()._cdata)
