"""The computing layers of a described network in order, and what each costs.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator

from corewise.workloads.branch_layers import Branches, Gated, WithAuxiliary
from corewise.workloads.layers import Add, Dropout, Layer, Residual, Sequence, Shape, num_parameters


@dataclasses.dataclass(frozen=True)
class Operation:
    """A layer that computes, with the shape it is given."""

    layer: Layer
    shape: Shape
    on_data: bool = False  # nothing before it is trained, so no one asks for the gradient of its input

    @property
    def num_multiply_adds(self) -> int:
        return self.layer.num_multiply_adds(self.shape)

    @property
    def num_backward_multiply_adds(self) -> int:
        """The gradients of the weights and, where asked for, of the input."""
        if self.on_data and self.layer.num_parameters == 0:
            return 0
        return self.layer.num_backward_multiply_adds(self.shape, self.on_data)

    @property
    def forward_elements(self) -> int:
        return self.layer.forward_elements(self.shape)

    @property
    def backward_elements(self) -> int:
        """Least elements moved backward: the gradient as the value forward, and what was saved."""
        if not self.on_data:
            return self.forward_elements + self.layer.saved_elements(self.shape)
        if self.layer.num_parameters == 0:
            return 0
        return self.forward_elements + self.layer.saved_elements(self.shape) - math.prod(self.shape)


def operations(
    layer: Layer, shape: Shape, on_data: bool = False, training: bool = True
) -> Iterator[Operation]:
    """The computing layers of a tree in order, each with its input shape; some compute in training alone."""
    if isinstance(layer, Sequence):
        for child in layer.layers:
            yield from operations(child, shape, on_data, training)
            shape, on_data = child.output_shape(shape), on_data and num_parameters(child) == 0
    elif isinstance(layer, WithAuxiliary):
        yield from operations(layer.trunk, shape, on_data, training)
        shape, on_data = layer.trunk.output_shape(shape), on_data and num_parameters(layer.trunk) == 0
        for child in (layer.auxiliary, layer.rest) if training else (layer.rest,):
            yield from operations(child, shape, on_data, training)
    elif isinstance(layer, (Residual, Branches, Gated)):
        for child in layer.children():
            yield from operations(child, shape, on_data, training)
        end = Add() if isinstance(layer, Residual) else layer.joined(shape)
        yield Operation(end, layer.output_shape(shape), on_data and num_parameters(layer) == 0)
    else:
        layer.output_shape(shape)  # refuses a shape that does not fit
        if training or not isinstance(layer, Dropout):
            yield Operation(layer, shape, on_data)
