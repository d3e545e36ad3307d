"""An image classifier described by layers, as a workload.

Measured side: standard library only, Python 3.9.

Work is counted per sample. Flops: two per multiply-add of convolutions and linear layers, as is customary;
training adds the gradients of the weights and of the inputs, the latter not for the first layer.
Bytes: float32, least traffic: every layer reads its input and writes its output once; backward, it reads the
gradient of its output and what it saved, and writes the gradient of its input. Parameters, moved once per
step whatever the batch, are not in it: `num_parameters` tells how many.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable, Mapping, Tuple

from corewise.workloads.base import Work
from corewise.workloads.layers import Dropout, Sequence, Shape, ShapeError, num_parameters, operations

FLOAT32_BYTES = 4
COLOURS = 3
DEFAULTS: Mapping[str, int] = {"image_size": 224, "num_classes": 1000}


@dataclasses.dataclass(frozen=True)
class Model:
    """A network for square colour images; `layers_for(num_classes)` describes it."""

    name: str
    summary: str
    layers_for: Callable[[int], Sequence]
    modes: Tuple[str, ...] = ("train", "infer")
    runtimes: Tuple[str, ...] = ("torch",)
    concurrent: bool = False

    @property
    def parameters(self) -> Mapping[str, Any]:
        return dict(DEFAULTS)

    def layers(self, args: Mapping[str, Any]) -> Sequence:
        """The description for the given arguments."""
        return self.layers_for(_whole(self.name, args, "num_classes"))

    def input_shape(self, args: Mapping[str, Any]) -> Shape:
        """The shape of one image; raises where the network does not fit on it."""
        size = _whole(self.name, args, "image_size")
        shape = (COLOURS, size, size)
        try:
            self.layers(args).output_shape(shape)
        except ShapeError as problem:
            raise ValueError(f"{self.name}: image_size {size} is too small: {problem}") from problem
        return shape

    def num_classes(self, args: Mapping[str, Any]) -> int:
        return _whole(self.name, args, "num_classes")

    def work(self, mode: str, args: Mapping[str, Any]) -> Work:
        """What one image costs."""
        shape = self.input_shape(args)
        flops, num_bytes = _cost(self.layers(args), shape, mode == "train")
        return Work(
            flops_per_sample=flops,
            bytes_per_sample=num_bytes,
            num_parameters=num_parameters(self.layers(args)),
            pixels_per_sample=shape[1] * shape[2],
        )


@functools.lru_cache(maxsize=128)
def _cost(layers: Sequence, shape: Shape, training: bool) -> Tuple[float, float]:
    """Flops and bytes of one sample."""
    performed = tuple(operations(layers, shape))
    if not training:
        performed = tuple(o for o in performed if not isinstance(o.layer, Dropout))
    multiply_adds = sum(o.num_multiply_adds for o in performed)
    elements = sum(o.forward_elements for o in performed)
    if training:
        first = performed[0]
        multiply_adds = 3 * multiply_adds - first.num_multiply_adds
        elements += sum(o.backward_elements for o in performed) - math.prod(first.shape)
    return 2.0 * multiply_adds, float(FLOAT32_BYTES * elements)


def _whole(model: str, args: Mapping[str, Any], name: str) -> int:
    unknown = sorted(set(args) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"{model} has no parameter {unknown[0]!r}; it has {', '.join(sorted(DEFAULTS))}")
    value = args.get(name, DEFAULTS[name])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{model}: {name} must be a whole number of at least 1, not {value!r}")
    return value
