"""Layers for sequences. The shape of one sample is (steps, features).

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math

from corewise.measured.workloads.models.layers import Layer, Shape, ShapeError

# The gates of an LSTM: input, forget, cell, output.
NUM_GATES = 4


@dataclasses.dataclass(frozen=True)
class TimeMajor(Layer):
    """The same elements with steps before samples, as recurrent layers read them, without data movement."""

    def count_forward_elements(self, shape: Shape) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Lstm(Layer):
    """One direction of an LSTM; with `reverse` it runs from the last step to the first."""

    in_features: int
    hidden: int
    reverse: bool = False

    def compute_output_shape(self, shape: Shape) -> Shape:
        _require_features(self, shape, self.in_features)
        return (shape[0], self.hidden)

    @property
    def num_parameters(self) -> int:
        """The parameters as in torch: weights of the input and of the hidden state, and a bias for each."""
        return NUM_GATES * self.hidden * (self.in_features + self.hidden + 2)

    def count_multiply_adds(self, shape: Shape) -> int:
        return shape[0] * NUM_GATES * self.hidden * (self.in_features + self.hidden)

    def count_backward_multiply_adds(self, shape: Shape, on_data: bool) -> int:
        """Count those for the weights, for the input unless it is data, and for all but the initial state."""
        num_states = (shape[0] - 1) * self.hidden
        num_inputs = 0 if on_data else math.prod(shape)
        return self.count_multiply_adds(shape) + NUM_GATES * self.hidden * (num_states + num_inputs)

    def count_saved_elements(self, shape: Shape) -> int:
        """Count the input and, for each step, gates, cell and output."""
        return math.prod(shape) + shape[0] * (NUM_GATES + 2) * self.hidden


@dataclasses.dataclass(frozen=True)
class Attention(Layer):
    """Scaled dot-product attention over all steps, from concatenated queries, keys and values."""

    features: int
    num_heads: int

    def compute_output_shape(self, shape: Shape) -> Shape:
        _require_features(self, shape, 3 * self.features)
        if self.features % self.num_heads:
            raise ShapeError(f"{self.features} features cannot be divided among {self.num_heads} heads")
        return (shape[0], self.features)

    def count_multiply_adds(self, shape: Shape) -> int:
        # The scores, and the values weighted by them.
        return 2 * shape[0] ** 2 * self.features

    def count_saved_elements(self, shape: Shape) -> int:
        # The backward pass recomputes the scores.
        return math.prod(shape) + math.prod(self.compute_output_shape(shape))


@dataclasses.dataclass(frozen=True)
class LayerNorm(Layer):
    """Normalisation of each step over its features, with scale and shift."""

    features: int

    def compute_output_shape(self, shape: Shape) -> Shape:
        _require_features(self, shape, self.features)
        return shape

    @property
    def num_parameters(self) -> int:
        return 2 * self.features

    def count_saved_elements(self, shape: Shape) -> int:
        return math.prod(shape)


@dataclasses.dataclass(frozen=True)
class MeanOverSteps(Layer):
    """The mean of all steps."""

    time_major: bool = False

    def compute_output_shape(self, shape: Shape) -> Shape:
        return shape[1:]


def _require_features(layer: Layer, shape: Shape, features: int) -> None:
    if len(shape) != 2 or shape[1] != features:
        raise ShapeError(f"{layer} cannot take an input of {shape}")
