"""An image classifier described by layers, as a workload.

Measured side: standard library only, Python 3.9. How its work is counted: layered.py.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Tuple

from corewise.workloads.layers import Layer, Shape, ShapeError
from corewise.workloads.models.layered import LayeredModel

COLOURS = 3
NUM_CLASSES = 1000
CHECK_IMAGE_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Model(LayeredModel):
    """A network for square colour images; `layers_for(num_classes)` describes it."""

    name: str
    summary: str
    layers_for: Callable[[int], Layer]
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = False
    takes_images: bool = True
    image_size: int = 224
    check_image_size: int = CHECK_IMAGE_SIZE  # large enough for a numerical check, and quick
    check_image_size_train: int = CHECK_IMAGE_SIZE
    # Whether gradients are checked with the statistics of the batch: deep networks without shortcuts
    # carry rounding errors through them that grow with every layer.
    checks_statistics: bool = True

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"image_size": self.image_size, "num_classes": NUM_CLASSES}

    def layers(self, args: Mapping[str, Any]) -> Layer:
        return self.layers_for(self.num_classes(args))

    def input_shape(self, args: Mapping[str, Any]) -> Shape:
        size = self.whole(args, "image_size")
        shape = (COLOURS, size, size)
        try:
            self.layers(args).output_shape(shape)
        except ShapeError as problem:
            raise ValueError(f"{self.name}: image_size {size} is too small: {problem}") from problem
        return shape
