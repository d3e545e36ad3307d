"""Layers with several paths through them: branches, experts behind a gate, a head for training alone.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Tuple

from corewise.workloads.layers import Layer, Shape, ShapeError

JOINS = ("concatenate", "channels", "sum", "dot", "stack")


@dataclasses.dataclass(frozen=True)
class Join(Layer):
    """Where the outputs of branches meet; stands behind them among the operations."""

    num_read: int  # elements of all of them
    num_saved: int = 0  # of these, what the backward pass must read again

    def forward_elements(self, shape: Shape) -> int:
        return self.num_read + math.prod(shape)

    def saved_elements(self, shape: Shape) -> int:
        return self.num_saved


@dataclasses.dataclass(frozen=True)
class Branches(Layer):
    """Layers over the same input that do not need each other, and how their outputs are joined.

    concatenate: side by side along the features; channels: the same for images; sum: added up; dot: the
    scalar product of two vectors; stack: one above the other, before the features.
    """

    branches: Tuple[Layer, ...]
    join: str  # of JOINS

    def children(self) -> Tuple[Layer, ...]:
        return self.branches

    def output_shape(self, shape: Shape) -> Shape:
        shapes = [branch.output_shape(shape) for branch in self.branches]
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
        raise ShapeError(f"branches give {shapes} for an input of {shape}; that does not {self.join}")

    def joined(self, shape: Shape) -> Join:
        """The operation at the end of the branches."""
        num_read = sum(math.prod(branch.output_shape(shape)) for branch in self.branches)
        return Join(num_read, num_read if self.join == "dot" else 0)


@dataclasses.dataclass(frozen=True)
class Gated(Layer):
    """Experts over the same input, added up with weights that a gate gives; all but the `top` are zero.

    Every expert computes, whatever the gate says, so that the graph is the same for every input.
    """

    gate: Layer
    experts: Branches  # joined by stack
    top: int

    def children(self) -> Tuple[Layer, ...]:
        return (self.gate, self.experts)

    def output_shape(self, shape: Shape) -> Shape:
        num_experts = len(self.experts.branches)
        if not 1 <= self.top <= num_experts:
            raise ShapeError(f"{self.top} of {num_experts} experts cannot be chosen")
        gates, made = self.gate.output_shape(shape), self.experts.output_shape(shape)
        if gates != made[:-1]:
            raise ShapeError(f"a gate gives {gates} for experts of {made}, with an input of {shape}")
        return (*made[:-2], made[-1])

    def joined(self, shape: Shape) -> Join:
        """The weighted sum at the end."""
        gates, made = self.gate.output_shape(shape), self.experts.output_shape(shape)
        num_read = math.prod(gates) + math.prod(made)
        return Join(num_read, num_read)


@dataclasses.dataclass(frozen=True)
class WithAuxiliary(Layer):
    """A network with a second head halfway, which computes in training alone."""

    trunk: Layer
    auxiliary: Layer
    rest: Layer

    def children(self) -> Tuple[Layer, ...]:
        return (self.trunk, self.auxiliary, self.rest)

    def output_shape(self, shape: Shape) -> Shape:
        return self.rest.output_shape(self.trunk.output_shape(shape))


@dataclasses.dataclass(frozen=True)
class Part(Layer):
    """Some of the features of a vector; nothing moves."""

    first: int
    num: int

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1 or self.first + self.num > shape[0]:
            raise ShapeError(f"{self} cannot take an input of {shape}")
        return (self.num,)

    def forward_elements(self, shape: Shape) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class Embedding(Layer):
    """A row of a table for each number of a vector."""

    num_rows: int
    features: int

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 1:
            raise ShapeError(f"{self} cannot take an input of {shape}")
        return (shape[0], self.features)

    @property
    def num_parameters(self) -> int:
        return self.num_rows * self.features

    def forward_elements(self, shape: Shape) -> int:
        return shape[0] + 2 * shape[0] * self.features  # the numbers and the rows read, the output written

    def saved_elements(self, shape: Shape) -> int:
        return shape[0]
