"""A network described by layers, as a workload for any input.

Measured side: standard library only, Python 3.9.

Work is counted per sample. Flops: two per multiply-add of convolutions, linear layers, recurrent layers and
attention, as is customary. Training adds the gradients of the weights and of the inputs, except inputs of
layers before which nothing is trained. Bytes: minimum traffic in float32. Every layer reads its input and
writes its output once. Backward, it reads the gradient of its output and its saved values, and writes the
gradient of its input. Parameters move once per step, independent of the batch, so they are not included:
`num_parameters` counts them.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.workloads.base import Traits, Work, Workload
from corewise.measured.workloads.models.layer_costs import iterate_operations
from corewise.measured.workloads.models.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Layer,
    Shape,
    ShapeError,
    count_parameters,
    expand_sides,
    walk_layers,
)
from corewise.measured.workloads.models.sequence_layers import Lstm

# Kernel sizes that our convolutions support, and the number that channels must be a multiple of.
FAST_KERNEL_SIZES, CHANNEL_MULTIPLE = ((3, 3), (5, 5)), 16
FLOAT32_BYTES = 4


class LayeredModel(Workload):
    """A described network; subclasses define its layers and its input.

    Attributes:
        time_major: True if steps come before samples in memory, as recurrent layers read them.
        check_image_size: Image size for a fast numerical check; 0 if it takes no images.
        check_image_size_train: The same for training.
        checks_statistics: True if gradients are checked with batch statistics. In deep networks without
            shortcuts these amplify rounding errors with every layer.
    """

    name: str
    takes_images: bool
    concurrent: bool
    time_major: bool = False
    check_image_size: int = 0
    check_image_size_train: int = 0
    checks_statistics: bool = True

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """Default values of the model's parameters."""

    @abstractmethod
    def build_layers(self, args: Mapping[str, Any]) -> Layer:
        """Build the layer tree for the given arguments."""

    @abstractmethod
    def compute_input_shape(self, args: Mapping[str, Any]) -> Shape:
        """Return the shape of one sample; raise ValueError if the network cannot process it."""

    def read_num_classes(self, args: Mapping[str, Any]) -> int:
        return self.read_whole_number(args, "num_classes")

    def list_id_limits(self, args: Mapping[str, Any]) -> Tuple[int, ...]:
        """Return the exclusive upper limit of each index of a sample; empty if samples are real numbers."""
        return ()

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count the work of one sample."""
        shape = self.compute_input_shape(args)
        try:
            flops, num_bytes = _count_cost(self.build_layers(args), shape, mode == "train")
        # Layers that are used in training only may need larger inputs.
        except ShapeError as problem:
            raise ValueError(f"{self.name} cannot {mode} on samples of {shape}: {problem}") from problem
        return Work(
            flops_per_sample=flops,
            bytes_per_sample=num_bytes,
            num_parameters=count_parameters(self.build_layers(args)),
            pixels_per_sample=shape[1] * shape[2] if self.takes_images else 0.0,
        )

    def describe_traits(self, args: Mapping[str, Any]) -> Traits:
        """Return the traits that follow from the layers."""
        layers = list(walk_layers(self.build_layers(args)))
        layer_types = {type(layer) for layer in layers}
        concurrent_under = "script" if self.concurrent else None
        is_fast = any(map(has_own_kernel, layers))
        return Traits(self.takes_images, BatchNorm in layer_types, Dropout in layer_types, concurrent_under, is_fast)

    def read_whole_number(self, args: Mapping[str, Any], name: str) -> int:
        """Return a whole-number parameter or its default; raise ValueError for another value."""
        value = self.read_argument(args, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.name}: {name} must be a whole number of at least 1, not {value!r}")
        return value

    def read_argument(self, args: Mapping[str, Any], name: str) -> Any:
        """Return a parameter or its default; raise ValueError for arguments that the model does not have."""
        defaults = self.parameters
        unknown = sorted(set(args) - set(defaults))
        if unknown:
            raise ValueError(f"{self.name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(defaults))}")
        return args.get(name, defaults[name])


def has_own_kernel(layer: Layer) -> bool:
    """Return True if `corewise.use_fast_kernels` accelerates the layer."""
    if isinstance(layer, Lstm):
        return True
    if not isinstance(layer, Conv) or expand_sides(layer.kernel) not in FAST_KERNEL_SIZES:
        return False
    has_full_blocks = layer.in_channels % CHANNEL_MULTIPLE == layer.out_channels % CHANNEL_MULTIPLE == 0
    return has_full_blocks and layer.stride == 1 and layer.groups == 1


@functools.lru_cache(maxsize=128)
def _count_cost(layers: Layer, shape: Shape, training: bool) -> Tuple[float, float]:
    """Count the flops and bytes of one sample."""
    operations = tuple(iterate_operations(layers, shape, on_data=True, training=training))
    multiply_adds = sum(o.num_multiply_adds for o in operations)
    elements = sum(o.forward_elements for o in operations)
    if training:
        multiply_adds += sum(o.num_backward_multiply_adds for o in operations)
        elements += sum(o.backward_elements for o in operations)
    return 2.0 * multiply_adds, float(FLOAT32_BYTES * elements)
