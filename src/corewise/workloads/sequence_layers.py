"""Layers for sequences; the shape of one sample is (steps, features).

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math

from corewise.workloads.layers import Layer, Shape, ShapeError

NUM_GATES = 4  # of an LSTM: input, forget, cell, output


@dataclasses.dataclass(frozen=True)
class TimeMajor(Layer):
    """The same elements, steps before samples, as recurrent layers read them; nothing moves."""

    def forward_elements(self, shape: Shape) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Lstm(Layer):
    """One direction of a long short-term memory; a reversed one reads and writes from the last step on."""

    in_features: int
    hidden: int
    reverse: bool = False

    def output_shape(self, shape: Shape) -> Shape:
        _expect_features(self, shape, self.in_features)
        return (shape[0], self.hidden)

    @property
    def num_parameters(self) -> int:
        """As torch has them: weights of inputs and of the hidden state, and a bias for each."""
        return NUM_GATES * self.hidden * (self.in_features + self.hidden + 2)

    def num_multiply_adds(self, shape: Shape) -> int:
        return shape[0] * NUM_GATES * self.hidden * (self.in_features + self.hidden)

    def num_backward_multiply_adds(self, shape: Shape, on_data: bool) -> int:
        """For the weights, for the input unless it is data, and for the state but the one it starts with."""
        num_states = (shape[0] - 1) * self.hidden
        num_inputs = 0 if on_data else math.prod(shape)
        return self.num_multiply_adds(shape) + NUM_GATES * self.hidden * (num_states + num_inputs)

    def saved_elements(self, shape: Shape) -> int:
        """The input and, for each step, gates, cell and output."""
        return math.prod(shape) + shape[0] * (NUM_GATES + 2) * self.hidden


@dataclasses.dataclass(frozen=True)
class Attention(Layer):
    """Scaled dot-product attention of each step to all steps, from queries, keys and values side by side."""

    features: int
    num_heads: int

    def output_shape(self, shape: Shape) -> Shape:
        _expect_features(self, shape, 3 * self.features)
        if self.features % self.num_heads:
            raise ShapeError(f"{self.features} features cannot be shared among {self.num_heads} heads")
        return (shape[0], self.features)

    def num_multiply_adds(self, shape: Shape) -> int:
        return 2 * shape[0] ** 2 * self.features  # the scores, and the values weighted by them

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape) + math.prod(self.output_shape(shape))  # scores are computed again


@dataclasses.dataclass(frozen=True)
class LayerNorm(Layer):
    """Each step normalised over its features, with scale and shift."""

    features: int

    def output_shape(self, shape: Shape) -> Shape:
        _expect_features(self, shape, self.features)
        return shape

    @property
    def num_parameters(self) -> int:
        return 2 * self.features

    def saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class MeanOverSteps(Layer):
    """The mean of all steps."""

    time_major: bool = False

    def output_shape(self, shape: Shape) -> Shape:
        return shape[1:]


def _expect_features(layer: Layer, shape: Shape, features: int) -> None:
    if len(shape) != 2 or shape[1] != features:
        raise ShapeError(f"{layer} cannot take an input of {shape}")
