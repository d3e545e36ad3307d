"""An image classifier described by layers, as a workload.

Measured side: standard library only, Python 3.9. layered_model.py explains how its work is counted.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Mapping, Tuple

from corewise.measured.workloads.models.layered_model import LayeredModel
from corewise.measured.workloads.models.layers import Layer, Shape, ShapeError

COLOURS = 3
NUM_CLASSES = 1000
CHECK_IMAGE_SIZE = 64


@dataclasses.dataclass(frozen=True)
class ImageModel(LayeredModel):
    """A network for square colour images; `layers_for(num_classes)` describes it."""

    name: str
    summary: str
    layers_for: Callable[[int], Layer]
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = False
    takes_images: bool = True
    image_size: int = 224
    check_image_size: int = CHECK_IMAGE_SIZE
    check_image_size_train: int = CHECK_IMAGE_SIZE
    checks_statistics: bool = True

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"image_size": self.image_size, "num_classes": NUM_CLASSES}

    def build_layers(self, args: Mapping[str, Any]) -> Layer:
        return self.layers_for(self.read_num_classes(args))

    def compute_input_shape(self, args: Mapping[str, Any]) -> Shape:
        size = self.read_whole_number(args, "image_size")
        shape = (COLOURS, size, size)
        try:
            self.build_layers(args).compute_output_shape(shape)
        except ShapeError as problem:
            raise ValueError(f"{self.name}: image_size {size} is too small: {problem}") from problem
        return shape
