"""A network as a tree of layers without any framework: shapes, parameters, arithmetic and traffic.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator, Optional, Tuple, Union

# One sample: (channels, height, width), (steps, features) or (features,).
Shape = Tuple[int, ...]
# The side of a square, or height and width.
Sides = Union[int, Tuple[int, int]]


class ShapeError(ValueError):
    """A layer cannot process an input shape; the message names both."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """One operator on one tensor; by default it costs nothing."""

    def compute_output_shape(self, shape: Shape) -> Shape:
        return shape

    @property
    def num_parameters(self) -> int:
        return 0

    def count_multiply_adds(self, shape: Shape) -> int:
        """Count multiply-adds of the forward pass of one sample."""
        return 0

    def count_backward_multiply_adds(self, shape: Shape, on_data: bool) -> int:
        """Count multiply-adds of the backward pass: for the weights, and for the input unless it is data."""
        return (1 if on_data else 2) * self.count_multiply_adds(shape)

    def count_forward_elements(self, shape: Shape) -> int:
        """Count the minimum elements moved forward: the input read once, the output written once."""
        return math.prod(shape) + math.prod(self.compute_output_shape(shape))

    def count_saved_elements(self, shape: Shape) -> int:
        """Count the elements that the forward pass saves for the backward pass."""
        return 0

    def list_children(self) -> Tuple[Layer, ...]:
        return ()


@dataclasses.dataclass(frozen=True)
class Conv(Layer):
    """A two-dimensional convolution."""

    in_channels: int
    out_channels: int
    kernel: Sides
    stride: int = 1
    padding: Sides = 0
    groups: int = 1
    bias: bool = True

    def compute_output_shape(self, shape: Shape) -> Shape:
        _require_channels(self, shape, self.in_channels, 3)
        sizes = zip(shape[1:], expand_sides(self.kernel), expand_sides(self.padding))
        height, width = (_count_positions(self, shape, n, kernel, self.stride, padding) for n, kernel, padding in sizes)
        return (self.out_channels, height, width)

    @property
    def num_parameters(self) -> int:
        return self.out_channels * (self._reads_per_output + self.bias)

    @property
    def _reads_per_output(self) -> int:
        return self.in_channels // self.groups * math.prod(expand_sides(self.kernel))

    def count_multiply_adds(self, shape: Shape) -> int:
        return math.prod(self.compute_output_shape(shape)) * self._reads_per_output

    def count_saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Linear(Layer):
    """A fully connected layer, applied to each step of a sequence.

    `keeps_scale` draws weights that preserve the scale of values in networks without normalisation.
    """

    in_features: int
    out_features: int
    bias: bool = True
    keeps_scale: bool = False

    def compute_output_shape(self, shape: Shape) -> Shape:
        if len(shape) > 2 or shape[-1] != self.in_features:
            raise ShapeError(f"{self} cannot take an input of {shape}")
        return (*shape[:-1], self.out_features)

    @property
    def num_parameters(self) -> int:
        return self.out_features * (self.in_features + self.bias)

    def count_multiply_adds(self, shape: Shape) -> int:
        return math.prod(shape) * self.out_features

    def count_saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalisation over the channels, with scale and shift."""

    channels: int
    epsilon: float = 1e-5

    def compute_output_shape(self, shape: Shape) -> Shape:
        _require_channels(self, shape, self.channels, 3)
        return shape

    @property
    def num_parameters(self) -> int:
        return 2 * self.channels

    def count_saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class ReLU(Layer):
    """The maximum of zero and the input; `in_place` allows overwriting the input."""

    in_place: bool = True

    def count_saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class MaxPool(Layer):
    """The largest value under a sliding square window."""

    kernel: int
    stride: int
    padding: int = 0

    def compute_output_shape(self, shape: Shape) -> Shape:
        height, width = (_count_positions(self, shape, n, self.kernel, self.stride, self.padding) for n in shape[1:])
        return (shape[0], height, width)

    def count_saved_elements(self, shape: Shape) -> int:
        # The index of each maximum.
        return math.prod(self.compute_output_shape(shape))


@dataclasses.dataclass(frozen=True)
class AvgPool(Layer):
    """The mean under a sliding square window, including zeros of the padding."""

    kernel: int
    stride: int
    padding: int = 0

    def compute_output_shape(self, shape: Shape) -> Shape:
        height, width = (_count_positions(self, shape, n, self.kernel, self.stride, self.padding) for n in shape[1:])
        return (shape[0], height, width)


@dataclasses.dataclass(frozen=True)
class AdaptiveAvgPool(Layer):
    """Means over a square grid of regions, one for each output position."""

    size: int

    def compute_output_shape(self, shape: Shape) -> Shape:
        return (shape[0], self.size, self.size)


@dataclasses.dataclass(frozen=True)
class Flatten(Layer):
    """The same elements as one vector, without data movement."""

    def compute_output_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def count_forward_elements(self, shape: Shape) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Dropout(Layer):
    """Random zeros in training; no operation in inference."""

    probability: float = 0.5

    def count_saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Sequence(Layer):
    """Consecutive layers."""

    layers: Tuple[Layer, ...]

    def list_children(self) -> Tuple[Layer, ...]:
        return self.layers

    def compute_output_shape(self, shape: Shape) -> Shape:
        for layer in self.layers:
            shape = layer.compute_output_shape(shape)
        return shape


@dataclasses.dataclass(frozen=True)
class Add(Layer):
    """The sum of two tensors of the same shape, at the end of a Residual."""

    def count_forward_elements(self, shape: Shape) -> int:
        return 3 * math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Residual(Layer):
    """The sum of a body and a shortcut over the same input; the default shortcut is the identity."""

    body: Layer
    shortcut: Optional[Layer] = None

    def list_children(self) -> Tuple[Layer, ...]:
        return (self.body,) if self.shortcut is None else (self.body, self.shortcut)

    def compute_output_shape(self, shape: Shape) -> Shape:
        body_shape = self.body.compute_output_shape(shape)
        shortcut_shape = shape if self.shortcut is None else self.shortcut.compute_output_shape(shape)
        if body_shape != shortcut_shape:
            raise ShapeError(
                f"the branches of a Residual give {body_shape} and {shortcut_shape} for an input of {shape}"
            )
        return body_shape


def count_parameters(layer: Layer) -> int:
    """Count the trainable values of the whole tree."""
    return layer.num_parameters + sum(count_parameters(child) for child in layer.list_children())


def walk_layers(layer: Layer) -> Iterator[Layer]:
    """Yield the layer and all layers in it."""
    yield layer
    for child in layer.list_children():
        yield from walk_layers(child)


def expand_sides(sides: Sides) -> Tuple[int, int]:
    """Return height and width."""
    return (sides, sides) if isinstance(sides, int) else sides


def _require_channels(layer: Layer, shape: Shape, first: int, num_dimensions: int) -> None:
    if len(shape) != num_dimensions or shape[0] != first:
        raise ShapeError(f"{layer} cannot take an input of {shape}")


def _count_positions(layer: Layer, shape: Shape, length: int, kernel: int, stride: int, padding: int) -> int:
    num_positions = (length + 2 * padding - kernel) // stride + 1
    if num_positions < 1:
        raise ShapeError(f"{layer} is larger than its input of {shape}")
    return num_positions
