"""A network described by layers, as a workload, whatever its input.

Measured side: standard library only, Python 3.9.

Work is counted per sample. Flops: two per multiply-add of convolutions, linear layers, recurrent layers and
attention, as is customary; training adds the gradients of the weights and of the inputs, the latter not where
nothing before the layer is trained. Bytes: float32, least traffic: every layer reads its input and writes its
output once; backward, it reads the gradient of its output and what it saved, and writes the gradient of its
input. Parameters, moved once per step whatever the batch, are not in it: `num_parameters` tells how many.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, Mapping, Tuple

from corewise.workloads.base import Traits, Work
from corewise.workloads.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Layer,
    Shape,
    ShapeError,
    both,
    every_layer,
    num_parameters,
)
from corewise.workloads.operations import operations
from corewise.workloads.sequence_layers import Lstm

OWN_CONVOLUTIONS, OWN_CHANNELS = ((3, 3), (5, 5)), 16  # sizes of kernels, and what channels are multiples of
FLOAT32_BYTES = 4


class LayeredModel(ABC):
    """What every described network can say of itself; its kinds say what its layers and its input are."""

    name: str
    takes_images: bool
    concurrent: bool

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """Its own parameters with their defaults."""

    @abstractmethod
    def layers(self, args: Mapping[str, Any]) -> Layer:
        """The description for the given arguments."""

    @abstractmethod
    def input_shape(self, args: Mapping[str, Any]) -> Shape:
        """The shape of one sample; raises ValueError where the network does not fit on it."""

    def num_classes(self, args: Mapping[str, Any]) -> int:
        return self.whole(args, "num_classes")

    def id_limits(self, args: Mapping[str, Any]) -> Tuple[int, ...]:
        """For samples of whole numbers what each of them stays below; nothing where they are real numbers."""
        return ()

    def work(self, mode: str, args: Mapping[str, Any]) -> Work:
        """What one sample costs."""
        shape = self.input_shape(args)
        try:
            flops, num_bytes = _cost(self.layers(args), shape, mode == "train")
        except ShapeError as problem:  # what computes in training alone may ask for more
            raise ValueError(f"{self.name} cannot {mode} on samples of {shape}: {problem}") from problem
        return Work(
            flops_per_sample=flops,
            bytes_per_sample=num_bytes,
            num_parameters=num_parameters(self.layers(args)),
            pixels_per_sample=shape[1] * shape[2] if self.takes_images else 0.0,
        )

    def traits(self, args: Mapping[str, Any]) -> Traits:
        """What its layers allow and forbid."""
        found = list(every_layer(self.layers(args)))
        kinds = {type(layer) for layer in found}
        concurrent_under = "script" if self.concurrent else None
        quickens = any(map(has_own_kernel, found))
        return Traits(self.takes_images, BatchNorm in kinds, Dropout in kinds, concurrent_under, quickens)

    def whole(self, args: Mapping[str, Any], name: str) -> int:
        """The whole number given for a parameter, or its default."""
        value = self.given(args, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.name}: {name} must be a whole number of at least 1, not {value!r}")
        return value

    def given(self, args: Mapping[str, Any], name: str) -> Any:
        """What was given for a parameter, or its default; refuses arguments the model does not have."""
        defaults = self.parameters
        unknown = sorted(set(args) - set(defaults))
        if unknown:
            raise ValueError(
                f"{self.name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(defaults))}"
            )
        return args.get(name, defaults[name])


def has_own_kernel(layer: Layer) -> bool:
    """Whether `corewise.quicken` does something for the layer."""
    if isinstance(layer, Lstm):
        return True
    if not isinstance(layer, Conv) or both(layer.kernel) not in OWN_CONVOLUTIONS:
        return False
    are_whole = layer.in_channels % OWN_CHANNELS == layer.out_channels % OWN_CHANNELS == 0
    return are_whole and layer.stride == 1 and layer.groups == 1


@functools.lru_cache(maxsize=128)
def _cost(layers: Layer, shape: Shape, training: bool) -> Tuple[float, float]:
    """Flops and bytes of one sample."""
    performed = tuple(operations(layers, shape, on_data=True, training=training))
    multiply_adds = sum(o.num_multiply_adds for o in performed)
    elements = sum(o.forward_elements for o in performed)
    if training:
        multiply_adds += sum(o.num_backward_multiply_adds for o in performed)
        elements += sum(o.backward_elements for o in performed)
    return 2.0 * multiply_adds, float(FLOAT32_BYTES * elements)
