"""Networks described by layers and several sizes, as workloads; most take sequences.

Measured side: standard library only, Python 3.9. layered_model.py explains how the work is counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Tuple

from corewise.measured.workloads.models.layered_model import LayeredModel
from corewise.measured.workloads.models.layers import Layer, Shape, ShapeError

# Every parameter of the model with its value.
Sizes = Mapping[str, Any]


class SizedModel(LayeredModel):
    """A network described by several sizes.

    Parameters with an integer default are sizes of at least 1. The others are fractions from 0 to below 1.
    """

    defaults: Mapping[str, Any]
    layers_for: Callable[[Sizes], Layer]

    @property
    def parameters(self) -> Mapping[str, Any]:
        return dict(self.defaults)

    def read_sizes(self, args: Mapping[str, Any]) -> Sizes:
        """Return every parameter with its checked value."""
        return {
            name: self.read_whole_number(args, name) if isinstance(default, int) else self._read_share(args, name)
            for name, default in self.defaults.items()
        }

    def build_layers(self, args: Mapping[str, Any]) -> Layer:
        return self.layers_for(self.read_sizes(args))

    def require_fit(self, shape: Shape, args: Mapping[str, Any]) -> Shape:
        """Return the shape; raise ValueError if the network cannot process it."""
        try:
            self.build_layers(args).compute_output_shape(shape)
        except ShapeError as problem:
            raise ValueError(f"{self.name}: {problem}") from problem
        return shape

    def _read_share(self, args: Mapping[str, Any], name: str) -> float:
        value = self.read_argument(args, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f"{self.name}: {name} must be a number from 0 to below 1, not {value!r}")
        return float(value)


@dataclasses.dataclass(frozen=True)
class SequenceModel(SizedModel):
    """A network for sequences, described by `layers_for(sizes)`.

    `steps` and `features` are the parameters with the length of a sequence and the features of a step.
    """

    name: str
    summary: str
    defaults: Mapping[str, Any]
    steps: str
    features: str
    layers_for: Callable[[Sizes], Layer]
    time_major: bool = False
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = False
    takes_images: bool = False

    def compute_input_shape(self, args: Mapping[str, Any]) -> Shape:
        sizes = self.read_sizes(args)
        return self.require_fit((sizes[self.steps], sizes[self.features]), args)
