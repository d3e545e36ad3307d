"""An image classifier described by layers, as a workload.

Measured side: standard library only, Python 3.9. How its work is counted: layered.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Tuple

from corewise.workloads.layers import Sequence, Shape, ShapeError
from corewise.workloads.models.layered import LayeredModel

COLOURS = 3
DEFAULTS: Mapping[str, int] = {"image_size": 224, "num_classes": 1000}


@dataclasses.dataclass(frozen=True)
class Model(LayeredModel):
    """A network for square colour images; `layers_for(num_classes)` describes it."""

    name: str
    summary: str
    layers_for: Callable[[int], Sequence]
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = False
    takes_images: bool = True

    @property
    def parameters(self) -> Mapping[str, Any]:
        return dict(DEFAULTS)

    def layers(self, args: Mapping[str, Any]) -> Sequence:
        return self.layers_for(self.num_classes(args))

    def input_shape(self, args: Mapping[str, Any]) -> Shape:
        size = self.whole(args, "image_size")
        shape = (COLOURS, size, size)
        try:
            self.layers(args).output_shape(shape)
        except ShapeError as problem:
            raise ValueError(f"{self.name}: image_size {size} is too small: {problem}") from problem
        return shape
