"""Join LSTMs over one input into a wider layer: when that is faster, and its weights.

Measured side: standard library and torch only, Python 3.9. A vector register holds 16 floats (8 without
AVX-512). An LSTM with ten hidden units leaves six lanes idle in every gate, and each step has the overhead of
a wide one. The recurrent weights of the wide layer are block-diagonal. Zeros add nothing, so results differ
only by the order of additions.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import torch

# Calls an operator with arguments and returns its value, or adds it to a graph.
Make = Callable[[Any, Sequence[Any]], Any]
_aten = torch.ops.aten
_NUM_GATES = 4
# Cost model of an LSTM step in relative units: per step, per vector lane, and per lane and hidden unit.
# Fitted to times of 10 to 80 hidden units on one core with AVX-512.
_STEP_COST, _LANE_COST, _UNIT_COST = 8.7, 0.79, 0.00875
# Joined layers must cost at most this share of the separate ones.
_MAX_COST_RATIO = 0.85


def count_vector_lanes() -> int:
    """Return how many float32 values a vector register of this processor holds."""
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability().upper() else 8


def choose_group_sizes(num_layers: int, hidden: int, num_lanes: int) -> List[int]:
    """Choose how many of these layers to join into each wide one; all 1 if joining is not faster."""
    separate = [1] * num_layers
    options = [_split_evenly(num_layers, num) for num in range(num_layers, 0, -1)]
    best = min(options, key=lambda sizes: _estimate_cost(sizes, hidden, num_lanes))
    is_faster = _estimate_cost(best, hidden, num_lanes) <= _MAX_COST_RATIO * _estimate_cost(separate, hidden, num_lanes)
    return best if is_faster else separate


def _split_evenly(total: int, num: int) -> List[int]:
    return [total * (part + 1) // num - total * part // num for part in range(num)]


def _estimate_cost(sizes: Sequence[int], hidden: int, num_lanes: int) -> float:
    """Estimate the cost of one step of all layers."""
    widths = [size * hidden for size in sizes]
    padded = [-(-width // num_lanes) * num_lanes for width in widths]
    return sum(_STEP_COST + pad * (_LANE_COST + _UNIT_COST * width) for width, pad in zip(widths, padded))


def call_operator(target: Any, args: Sequence[Any]) -> Any:
    """Call the operator."""
    return target(*args)


def build_wide_weights(
    layers: Sequence[Sequence[Any]], shapes: Sequence[Sequence[int]], make: Make, num_directions: int = 1
) -> List[Any]:
    """Build the weights of the wide layer, in torch's order, from each layer's weights and shapes."""
    per_direction = len(shapes) // num_directions
    return [
        _join_blocks(weights, shape, make) if index % per_direction == 1 else _join_rows(weights, shape, make)
        for index, (weights, shape) in enumerate(zip(zip(*layers), shapes))
    ]


def _join_rows(weights: Sequence[Any], shape: Sequence[int], make: Make) -> Any:
    """Join input weights or biases: for each gate the rows of all layers."""
    num_rows, *rest = shape
    order = [1, 0, *range(2, 3 + len(rest))]
    gates = make(_aten.permute.default, (_group_gates(weights, shape, make), order))
    return make(_aten.reshape.default, (gates, [len(weights) * num_rows, *rest]))


def _join_blocks(weights: Sequence[Any], shape: Sequence[int], make: Make) -> Any:
    """Join recurrent weights: for each gate a block-diagonal matrix."""
    num_rows, hidden = shape
    # Dimensions: gate, row, column, layer.
    by_layer = make(_aten.permute.default, (_group_gates(weights, shape, make), [1, 2, 3, 0]))
    # Dimensions: gate, row, column, layer, layer.
    diagonal = make(_aten.diag_embed.default, (by_layer,))
    square = make(_aten.permute.default, (diagonal, [0, 3, 1, 4, 2]))
    return make(_aten.reshape.default, (square, [len(weights) * num_rows, len(weights) * hidden]))


def _group_gates(weights: Sequence[Any], shape: Sequence[int], make: Make) -> Any:
    """Group the layers' weights by layer and gate."""
    num_rows, *rest = shape
    sizes = [len(weights), _NUM_GATES, num_rows // _NUM_GATES, *rest]
    return make(_aten.view.default, (make(_aten.stack.default, (list(weights),)), sizes))
