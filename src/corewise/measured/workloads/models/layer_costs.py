"""The operations of a described network in order, and their cost.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator

from corewise.measured.workloads.models.branch_layers import Branches, Gated, WithAuxiliary
from corewise.measured.workloads.models.layers import Add, Dropout, Layer, Residual, Sequence, Shape, count_parameters


@dataclasses.dataclass(frozen=True)
class Operation:
    """A layer that computes, with the shape of its input.

    `on_data` is true if no layer before it is trained, so that its input needs no gradient.
    """

    layer: Layer
    shape: Shape
    on_data: bool = False

    @property
    def num_multiply_adds(self) -> int:
        return self.layer.count_multiply_adds(self.shape)

    @property
    def num_backward_multiply_adds(self) -> int:
        """Multiply-adds for the gradients of the weights and, if needed, of the input."""
        if self.on_data and self.layer.num_parameters == 0:
            return 0
        return self.layer.count_backward_multiply_adds(self.shape, self.on_data)

    @property
    def forward_elements(self) -> int:
        return self.layer.count_forward_elements(self.shape)

    @property
    def backward_elements(self) -> int:
        """Minimum elements moved backward: gradients like the values forward, plus saved values."""
        if not self.on_data:
            return self.forward_elements + self.layer.count_saved_elements(self.shape)
        if self.layer.num_parameters == 0:
            return 0
        return self.forward_elements + self.layer.count_saved_elements(self.shape) - math.prod(self.shape)


def iterate_operations(layer: Layer, shape: Shape, on_data: bool = False, training: bool = True) -> Iterator[Operation]:
    """Yield the operations of a layer tree in order, with their input shapes; some exist in training only."""
    if isinstance(layer, Sequence):
        for child in layer.layers:
            yield from iterate_operations(child, shape, on_data, training)
            shape, on_data = child.compute_output_shape(shape), on_data and count_parameters(child) == 0
    elif isinstance(layer, WithAuxiliary):
        yield from iterate_operations(layer.trunk, shape, on_data, training)
        shape, on_data = (layer.trunk.compute_output_shape(shape), on_data and count_parameters(layer.trunk) == 0)
        for child in (layer.auxiliary, layer.rest) if training else (layer.rest,):
            yield from iterate_operations(child, shape, on_data, training)
    elif isinstance(layer, (Residual, Branches, Gated)):
        for child in layer.list_children():
            yield from iterate_operations(child, shape, on_data, training)
        end = Add() if isinstance(layer, Residual) else layer.build_join(shape)
        yield Operation(end, layer.compute_output_shape(shape), on_data and count_parameters(layer) == 0)
    else:
        # This raises ShapeError for a shape that does not fit.
        layer.compute_output_shape(shape)
        if training or not isinstance(layer, Dropout):
            yield Operation(layer, shape, on_data)
