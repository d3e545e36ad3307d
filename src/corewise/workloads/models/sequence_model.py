"""A network described by layers and several sizes, as a workload; most take sequences.

Measured side: standard library only, Python 3.9. How its work is counted: layered.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Tuple

from corewise.workloads.layers import Layer, Shape, ShapeError
from corewise.workloads.models.layered import LayeredModel

Sizes = Mapping[str, Any]  # every parameter of the model with its value


class SizedModel(LayeredModel):
    """A network described by several sizes.

    Parameters whose default is a whole number are sizes of at least 1, the others shares from 0 to below 1.
    """

    defaults: Mapping[str, Any]
    layers_for: Callable[[Sizes], Layer]

    @property
    def parameters(self) -> Mapping[str, Any]:
        return dict(self.defaults)

    def sizes(self, args: Mapping[str, Any]) -> Sizes:
        """Every parameter with its value, checked."""
        return {
            name: self.whole(args, name) if isinstance(default, int) else self._share(args, name)
            for name, default in self.defaults.items()
        }

    def layers(self, args: Mapping[str, Any]) -> Layer:
        return self.layers_for(self.sizes(args))

    def fitting(self, shape: Shape, args: Mapping[str, Any]) -> Shape:
        """The shape; raises ValueError where the network does not fit on it."""
        try:
            self.layers(args).output_shape(shape)
        except ShapeError as problem:
            raise ValueError(f"{self.name}: {problem}") from problem
        return shape

    def _share(self, args: Mapping[str, Any], name: str) -> float:
        value = self.given(args, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f"{self.name}: {name} must be a number from 0 to below 1, not {value!r}")
        return float(value)


@dataclasses.dataclass(frozen=True)
class SequenceModel(SizedModel):
    """A network for sequences; `layers_for(sizes)` describes it."""

    name: str
    summary: str
    defaults: Mapping[str, Any]
    steps: str  # the parameter that says how many steps a sequence has
    features: str  # and the one that says how many features each step has
    layers_for: Callable[[Sizes], Layer]
    time_major: bool = False  # sequences lie in memory steps before samples, as recurrent layers read them
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = False
    takes_images: bool = False

    def input_shape(self, args: Mapping[str, Any]) -> Shape:
        sizes = self.sizes(args)
        return self.fitting((sizes[self.steps], sizes[self.features]), args)
