"""LSTMs over one input as one wider layer: when that pays, and how its weights are put together.

Measured side: standard library and torch only, Python 3.9. A vector of the processor holds sixteen numbers
(eight without AVX-512): an LSTM of ten hidden units leaves six of them idle in every gate, and each of its
steps costs as much to begin as a wide one's. The recurrent weights of the wide layer are those of the layers
in blocks, zeros between them. Zeros add nothing: the results are the same numbers up to the order in which
they are added up.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import torch

Make = Callable[[Any, Sequence[Any]], Any]  # an operator and its arguments -> its value
_aten = torch.ops.aten
_GATES = 4
# A step of an LSTM by its hidden units, in units of no matter: what it costs to begin one, and what a lane of
# its vectors costs, more where products are longer. From times of 10 to 80 units on one core with AVX-512.
_STEP, _LANE, _PER_UNIT = 8.7, 0.79, 0.00875
_WORTH = 0.85  # of the time of the layers by themselves


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
    return sum(_STEP + pad * (_LANE + _PER_UNIT * width) for width, pad in zip(widths, padded))


def called(target: Any, args: Sequence[Any]) -> Any:
    """The value itself."""
    return target(*args)


def wide_weights(
    layers: Sequence[Sequence[Any]], shapes: Sequence[Sequence[int]], make: Make, num_directions: int = 1
) -> List[Any]:
    """The weights of the wide layer, in torch's order, from those of each layer and their shapes."""
    per_direction = len(shapes) // num_directions
    return [
        _in_blocks(own, shape, make) if place % per_direction == 1 else _in_rows(own, shape, make)
        for place, (own, shape) in enumerate(zip(zip(*layers), shapes))
    ]


def _in_rows(own: Sequence[Any], shape: Sequence[int], make: Make) -> Any:
    """Weights of the input or biases: of each gate those of the first layer, then those of the second."""
    num_rows, *rest = shape
    order = [1, 0, *range(2, 3 + len(rest))]
    gates = make(_aten.permute.default, (_stacked(own, shape, make), order))
    return make(_aten.reshape.default, (gates, [len(own) * num_rows, *rest]))


def _in_blocks(own: Sequence[Any], shape: Sequence[int], make: Make) -> Any:
    """Recurrent weights: of each gate a square of blocks, those of the layers along its diagonal."""
    num_rows, hidden = shape
    last = make(_aten.permute.default, (_stacked(own, shape, make), [1, 2, 3, 0]))  # the layer
    apart = make(_aten.diag_embed.default, (last,))  # gate, row, column, layer and layer again
    square = make(_aten.permute.default, (apart, [0, 3, 1, 4, 2]))
    return make(_aten.reshape.default, (square, [len(own) * num_rows, len(own) * hidden]))


def _stacked(own: Sequence[Any], shape: Sequence[int], make: Make) -> Any:
    """The layers' weights by layer and gate."""
    num_rows, *rest = shape
    sizes = [len(own), _GATES, num_rows // _GATES, *rest]
    return make(_aten.view.default, (make(_aten.stack.default, (list(own),)), sizes))
