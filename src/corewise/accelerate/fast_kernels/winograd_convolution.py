"""Winograd convolution of 3 x 3 and 5 x 5 in frozen networks, where it is faster than oneDNN.

Measured side: standard library and torch only, Python 3.9. Needs the C++ module. Without it, oneDNN computes
all convolutions.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from corewise.accelerate.equivalence import copy_inputs, restore_module
from corewise.accelerate.fast_kernels import winograd_rule
from corewise.accelerate.fast_kernels.kernel_support import has_kernels
from corewise.accelerate.freeze.packed_layers import PreparedConvolution, PreparedLayer

# A layer that is not faster by this factor stays with oneDNN.
MIN_SPEEDUP = 1.1
# In each round the network runs once with either kernel.
MIN_ROUNDS, MAX_ROUNDS = 2, 4
# No further round starts after this many seconds.
MAX_MEASURING_S = 1.5
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": functional.silu,
}


class WinogradConvolution(PreparedConvolution):
    """A Winograd convolution: fewer products, each slightly less exact."""

    def __init__(self, layer: nn.Conv2d, made: PreparedConvolution) -> None:
        PreparedLayer.__init__(self, layer, made.dtype)
        self.activation, self.overwrites = made.activation, made.overwrites
        self.around, self.sizes = made.around, made.sizes
        self.num_channels, self.kernel = made.num_channels, made.kernel
        self.weight = torch.ops.corewise.winograd_weight(layer.weight.detach())

    def forward(self, x: Tensor, other: Optional[Tensor] = None) -> Any:
        x = x.to(self.dtype)
        name, approximation = self.activation
        args = (x, self.weight, self.bias, self.kernel[0], self.around[0])
        other = None if other is None else other.to(self.dtype)
        # The kernel does not broadcast.
        if other is not None and tuple(other.shape) != self._compute_result_shape(x):
            total = torch.ops.corewise.winograd_convolution(*args, None, False) + other
            return _apply_activation(total, name, approximation)
        is_relu = name == "relu"
        if other is not None and self._can_overwrite(other):
            torch.ops.corewise.winograd_convolution_(other, *args, is_relu)
            result = other
        else:
            result = torch.ops.corewise.winograd_convolution(*args, other, is_relu)
        return result if is_relu else _apply_activation(result, name, approximation)

    def _can_overwrite(self, other: Tensor) -> bool:
        return self.overwrites and other.is_contiguous(memory_format=torch.channels_last)


def use_winograd(
    network: fx.GraphModule, layers: Mapping[str, nn.Conv2d], example_inputs: Sequence[Any], is_measured: bool = True
) -> int:
    """Replace prepared convolutions by Winograd convolutions and return how many.

    Args:
        network: The network with prepared convolutions.
        layers: The original layers, by the name of the prepared ones in the network.
        example_inputs: Inputs on which both kernels are measured.
        is_measured: True replaces those that become faster, False all that are supported.
    """
    suited = {name: layer for name, layer in layers.items() if supports_layer(layer)}
    if not suited or not has_kernels():
        return 0
    before = {name: network.get_submodule(name) for name in suited}
    made: Dict[str, nn.Module] = {}
    for name, layer in suited.items():
        prepared = before[name]
        assert isinstance(prepared, PreparedConvolution)
        made[name] = WinogradConvolution(layer, prepared)
    if is_measured:
        gains = _measure_speedups(network, before, made, example_inputs)
        made = {name: layer for name, layer in made.items() if gains[name] >= MIN_SPEEDUP}
    for name, faster in made.items():
        network.add_submodule(name, faster)
    return len(made)


def count_winograd_layers(network: nn.Module) -> int:
    """Count the Winograd convolutions of a network, including those in captured graphs."""
    num_layers = sum(isinstance(layer, WinogradConvolution) for layer in network.modules())
    return num_layers + sum(getattr(vars(part).get("forward"), "num_winograd", 0) for part in network.modules())


def supports_layer(layer: nn.Conv2d) -> bool:
    """Return whether Winograd convolution supports this layer."""
    return has_supported_shape(layer) and all(each.dtype == torch.float32 for each in layer.parameters())


def has_supported_shape(layer: nn.Conv2d) -> bool:
    """Return whether Winograd convolution supports the sizes of this layer, in any dtype."""
    channels = (layer.out_channels, layer.in_channels)
    sizes = (layer.kernel_size, layer.stride, layer.dilation, layer.groups)
    return winograd_rule.supports_winograd(channels, *sizes) and layer.padding_mode == "zeros"


def _measure_speedups(
    network: fx.GraphModule, one: Mapping[str, nn.Module], other: Mapping[str, nn.Module], inputs: Sequence[Any]
) -> Dict[str, float]:
    """Measure how many times as fast the other layers are, each within the network.

    There, weights have left the cache since the last call, which costs more for larger weights.
    """
    seconds = (dict.fromkeys(one, float("inf")), dict.fromkeys(other, float("inf")))
    began = time.perf_counter()
    with torch.no_grad(), restore_module(network):
        for number in range(MAX_ROUNDS):
            if number >= MIN_ROUNDS and time.perf_counter() - began > MAX_MEASURING_S:
                break
            for best, layers in zip(seconds, (one, other)):
                timed = _LayerTimer(network, layers)
                timed.run(*copy_inputs(inputs))
                best.update({name: min(best[name], took) for name, took in timed.seconds.items()})
    return {name: seconds[0][name] / seconds[1][name] for name in one}


class _LayerTimer(fx.Interpreter):
    """Runs a network with some layers replaced, and times each of these."""

    def __init__(self, network: fx.GraphModule, layers: Mapping[str, nn.Module]) -> None:
        super().__init__(network)
        self.layers = layers
        self.seconds: Dict[str, float] = {}

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        layer = self.layers.get(target)
        if layer is None:
            return super().call_module(target, args, kwargs)
        began = time.perf_counter()
        result = layer(*args, **kwargs)
        self.seconds[target] = time.perf_counter() - began
        return result


def _apply_activation(value: Tensor, name: str, approximation: Optional[str]) -> Tensor:
    if name == "gelu":
        return functional.gelu(value, approximate=approximation or "none")
    return value if name == "none" else _ACTIVATIONS[name](value)
