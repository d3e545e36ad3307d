"""A network as a tree of layers, free of frameworks: its shapes, parameters, arithmetic and traffic.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Iterator, Optional, Tuple, Union

Shape = Tuple[int, ...]  # one sample: (channels, height, width), (steps, features) or (features,)
Sides = Union[int, Tuple[int, int]]  # of a square, or height and width


class ShapeError(ValueError):
    """A layer was given a shape it cannot take; the text names both."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """One operator on one tensor; what it does not override costs nothing."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    @property
    def num_parameters(self) -> int:
        return 0

    def num_multiply_adds(self, shape: Shape) -> int:
        """Multiply-adds of the forward pass of one sample."""
        return 0

    def num_backward_multiply_adds(self, shape: Shape, on_data: bool) -> int:
        """The same of the backward pass: as many for the weights, and for the input unless it is data."""
        return (1 if on_data else 2) * self.num_multiply_adds(shape)

    def forward_elements(self, shape: Shape) -> int:
        """Least elements moved forward: the input read once, the output written once."""
        return math.prod(shape) + math.prod(self.output_shape(shape))

    def saved_elements(self, shape: Shape) -> int:
        """Elements kept by the forward pass that the backward pass must read again."""
        return 0

    def children(self) -> Tuple[Layer, ...]:
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

    def output_shape(self, shape: Shape) -> Shape:
        _expect(self, shape, self.in_channels, 3)
        sizes = zip(shape[1:], both(self.kernel), both(self.padding))
        height, width = (_slid(self, shape, n, kernel, self.stride, padding) for n, kernel, padding in sizes)
        return (self.out_channels, height, width)

    @property
    def num_parameters(self) -> int:
        return self.out_channels * (self._reads_per_output + self.bias)

    @property
    def _reads_per_output(self) -> int:
        return self.in_channels // self.groups * math.prod(both(self.kernel))

    def num_multiply_adds(self, shape: Shape) -> int:
        return math.prod(self.output_shape(shape)) * self._reads_per_output

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Linear(Layer):
    """A fully connected layer, for each step of a sequence alike."""

    in_features: int
    out_features: int
    bias: bool = True
    keeps_scale: bool = False  # weights drawn so that values stay as large, where nothing is normalised

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) > 2 or shape[-1] != self.in_features:
            raise ShapeError(f"{self} cannot take an input of {shape}")
        return (*shape[:-1], self.out_features)

    @property
    def num_parameters(self) -> int:
        return self.out_features * (self.in_features + self.bias)

    def num_multiply_adds(self, shape: Shape) -> int:
        return math.prod(shape) * self.out_features

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalisation over the channels, with scale and shift."""

    channels: int
    epsilon: float = 1e-5

    def output_shape(self, shape: Shape) -> Shape:
        _expect(self, shape, self.channels, 3)
        return shape

    @property
    def num_parameters(self) -> int:
        return 2 * self.channels

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class ReLU(Layer):
    """The larger of zero and the input."""

    in_place: bool = True  # may overwrite its input

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class MaxPool(Layer):
    """The largest value under a sliding square window."""

    kernel: int
    stride: int
    padding: int = 0

    def output_shape(self, shape: Shape) -> Shape:
        height, width = (_slid(self, shape, n, self.kernel, self.stride, self.padding) for n in shape[1:])
        return (shape[0], height, width)

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(self.output_shape(shape))  # which input won


@dataclasses.dataclass(frozen=True)
class AvgPool(Layer):
    """The mean under a sliding square window, zeros beyond the edge counted in."""

    kernel: int
    stride: int
    padding: int = 0

    def output_shape(self, shape: Shape) -> Shape:
        height, width = (_slid(self, shape, n, self.kernel, self.stride, self.padding) for n in shape[1:])
        return (shape[0], height, width)


@dataclasses.dataclass(frozen=True)
class AdaptiveAvgPool(Layer):
    """Means over as many square regions as the output has places."""

    size: int

    def output_shape(self, shape: Shape) -> Shape:
        return (shape[0], self.size, self.size)


@dataclasses.dataclass(frozen=True)
class Flatten(Layer):
    """The same elements as one vector; nothing moves."""

    def output_shape(self, shape: Shape) -> Shape:
        return (math.prod(shape),)

    def forward_elements(self, shape: Shape) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Dropout(Layer):
    """Random zeros in training; nothing in inference."""

    probability: float = 0.5

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Sequence(Layer):
    """Layers one after another."""

    layers: Tuple[Layer, ...]

    def children(self) -> Tuple[Layer, ...]:
        return self.layers

    def output_shape(self, shape: Shape) -> Shape:
        for layer in self.layers:
            shape = layer.output_shape(shape)
        return shape


@dataclasses.dataclass(frozen=True)
class Add(Layer):
    """The sum of two tensors of one shape; stands where the branches of a Residual meet."""

    def forward_elements(self, shape: Shape) -> int:
        return 3 * math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Residual(Layer):
    """The sum of a body and a shortcut over the same input; without a shortcut, the input itself."""

    body: Layer
    shortcut: Optional[Layer] = None

    def children(self) -> Tuple[Layer, ...]:
        return (self.body,) if self.shortcut is None else (self.body, self.shortcut)

    def output_shape(self, shape: Shape) -> Shape:
        through = self.body.output_shape(shape)
        beside = shape if self.shortcut is None else self.shortcut.output_shape(shape)
        if through != beside:
            raise ShapeError(
                f"the branches of a Residual give {through} and {beside} for an input of {shape}"
            )
        return through


def num_parameters(layer: Layer) -> int:
    """Trainable values in the whole tree."""
    return layer.num_parameters + sum(num_parameters(child) for child in layer.children())


def every_layer(layer: Layer) -> Iterator[Layer]:
    """The layer and all within it."""
    yield layer
    for child in layer.children():
        yield from every_layer(child)


def both(sides: Sides) -> Tuple[int, int]:
    """Height and width."""
    return (sides, sides) if isinstance(sides, int) else sides


def _expect(layer: Layer, shape: Shape, first: int, num_dimensions: int) -> None:
    if len(shape) != num_dimensions or shape[0] != first:
        raise ShapeError(f"{layer} cannot take an input of {shape}")


def _slid(layer: Layer, shape: Shape, length: int, kernel: int, stride: int, padding: int) -> int:
    places = (length + 2 * padding - kernel) // stride + 1
    if places < 1:
        raise ShapeError(f"{layer} does not fit into an input of {shape}")
    return places
