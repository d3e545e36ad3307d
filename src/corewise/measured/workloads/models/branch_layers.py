"""Layers with several paths: branches, experts behind a gate, and a head for training only.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Tuple

from corewise.measured.workloads.models.layers import Layer, Shape, ShapeError

JOINS = ("concatenate", "channels", "sum", "dot", "stack")


@dataclasses.dataclass(frozen=True)
class Join(Layer):
    """The operation that joins the outputs of branches; it follows them in the list of operations.

    `num_read` counts the elements of all outputs, `num_saved` those that the backward pass reads again.
    """

    num_read: int
    num_saved: int = 0

    def count_forward_elements(self, shape: Shape) -> int:
        return self.num_read + math.prod(shape)

    def count_saved_elements(self, shape: Shape) -> int:
        return self.num_saved


@dataclasses.dataclass(frozen=True)
class Branches(Layer):
    """Independent layers over the same input, and how their outputs are joined.

    `join` is one of JOINS. concatenate: along the features; channels: along the channels of images; sum:
    elementwise; dot: the scalar product of two vectors; stack: along a new axis before the features.
    """

    branches: Tuple[Layer, ...]
    join: str

    def list_children(self) -> Tuple[Layer, ...]:
        return self.branches

    def compute_output_shape(self, shape: Shape) -> Shape:
        shapes = [branch.compute_output_shape(shape) for branch in self.branches]
        if self.join in ("concatenate", "channels"):
            at = 0 if self.join == "channels" else len(shapes[0]) - 1
            if len({(*s[:at], *s[at + 1 :]) for s in shapes}) == 1:
                return (*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :])
        elif len(set(shapes)) == 1:
            if self.join == "stack":
                return (*shapes[0][:-1], len(shapes), shapes[0][-1])
            if self.join == "sum":
                return shapes[0]
            if len(shapes) == 2 and len(shapes[0]) == 1:
                return (1,)
        raise ShapeError(f"branches give {shapes} for an input of {shape}, which cannot be joined by {self.join}")

    def build_join(self, shape: Shape) -> Join:
        """Return the operation that joins the branches."""
        num_read = sum(math.prod(branch.compute_output_shape(shape)) for branch in self.branches)
        return Join(num_read, num_read if self.join == "dot" else 0)


@dataclasses.dataclass(frozen=True)
class Gated(Layer):
    """A sum of experts over the same input, weighted by a gate; all but the `top` weights are zero.

    Every expert computes for every input, so that the graph is always the same. The experts are joined by
    stack.
    """

    gate: Layer
    experts: Branches
    top: int

    def list_children(self) -> Tuple[Layer, ...]:
        return (self.gate, self.experts)

    def compute_output_shape(self, shape: Shape) -> Shape:
        num_experts = len(self.experts.branches)
        if not 1 <= self.top <= num_experts:
            raise ShapeError(f"cannot choose {self.top} of {num_experts} experts")
        gates, outputs = self.gate.compute_output_shape(shape), self.experts.compute_output_shape(shape)
        if gates != outputs[:-1]:
            raise ShapeError(f"a gate gives {gates} for experts of {outputs}, with an input of {shape}")
        return (*outputs[:-2], outputs[-1])

    def build_join(self, shape: Shape) -> Join:
        """Return the weighted sum at the end."""
        gates, outputs = self.gate.compute_output_shape(shape), self.experts.compute_output_shape(shape)
        num_read = math.prod(gates) + math.prod(outputs)
        return Join(num_read, num_read)


@dataclasses.dataclass(frozen=True)
class WithAuxiliary(Layer):
    """A network with a second head halfway, used in training only."""

    trunk: Layer
    auxiliary: Layer
    rest: Layer

    def list_children(self) -> Tuple[Layer, ...]:
        return (self.trunk, self.auxiliary, self.rest)

    def compute_output_shape(self, shape: Shape) -> Shape:
        return self.rest.compute_output_shape(self.trunk.compute_output_shape(shape))


@dataclasses.dataclass(frozen=True)
class Part(Layer):
    """A slice of the features of a vector, without data movement."""

    first: int
    num: int

    def compute_output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1 or self.first + self.num > shape[0]:
            raise ShapeError(f"{self} cannot take an input of {shape}")
        return (self.num,)

    def count_forward_elements(self, shape: Shape) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Embedding(Layer):
    """A table row for each index of a vector."""

    num_rows: int
    features: int

    def compute_output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ShapeError(f"{self} cannot take an input of {shape}")
        return (shape[0], self.features)

    @property
    def num_parameters(self) -> int:
        return self.num_rows * self.features

    def count_forward_elements(self, shape: Shape) -> int:
        # Indices and rows are read, the output is written.
        return shape[0] + 2 * shape[0] * self.features

    def count_saved_elements(self, shape: Shape) -> int:
        return shape[0]
