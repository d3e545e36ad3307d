"""Convolutions of 3 x 3 and 5 x 5 by Winograd's way, where fewer products make them quicker than oneDNN's.

Measured side: standard library and torch only, Python 3.9. Needs the C++ module; where it cannot be built,
all convolutions stay oneDNN's.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from corewise.dataflow import winograd_rule
from corewise.runtimes.torch.own_kernels import has_kernel
from corewise.runtimes.torch.prepared_layers import Prepared, PreparedConvolution
from corewise.runtimes.torch.same_results import copied, left_alone

MARGIN = 1.1  # what is not clearly quicker stays oneDNN's
LEAST_ROUNDS, MOST_ROUNDS = 2, 4  # of the network, each once by either way
ENOUGH_S = 1.5
_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": functional.silu,
}


class WinogradConvolution(PreparedConvolution):
    """The same convolution by fewer products, each a little less exact."""

    def __init__(self, layer: nn.Conv2d, made: PreparedConvolution) -> None:
        Prepared.__init__(self, layer, made.dtype)
        self.activation, self.overwrites = made.activation, made.overwrites
        self.around, self.sizes = made.around, made.sizes
        self.num_channels, self.kernel = made.num_channels, made.kernel
        self.weight = torch.ops.corewise.winograd_weight(layer.weight.detach())

    def forward(self, x: Tensor, other: Optional[Tensor] = None) -> Any:
        x = x.to(self.dtype)
        name, how = self.activation
        given = (x, self.weight, self.bias, self.kernel[0], self.around[0])
        other = None if other is None else other.to(self.dtype)
        if other is not None and tuple(other.shape) != self._result_shape(x):  # one is spread out
            return _activated(torch.ops.corewise.winograd_convolution(*given, None, False) + other, name, how)
        is_relu = name == "relu"
        if other is not None and self._may_overwrite(other):
            torch.ops.corewise.winograd_convolution_(other, *given, is_relu)
            result = other
        else:
            result = torch.ops.corewise.winograd_convolution(*given, other, is_relu)
        return result if is_relu else _activated(result, name, how)

    def _may_overwrite(self, other: Tensor) -> bool:
        return self.overwrites and other.is_contiguous(memory_format=torch.channels_last)


def use_winograd(
    network: fx.GraphModule,
    layers: Mapping[str, nn.Conv2d],
    example_inputs: Sequence[Any],
    is_measured: bool = True,
) -> int:
    """How many prepared convolutions now take Winograd's way: those it speeds up, or all that can.

    Layers are those that were prepared, by the names they have in the network now.
    """
    suited = {name: layer for name, layer in layers.items() if suits(layer)}
    if not suited or not has_kernel():
        return 0
    before = {name: network.get_submodule(name) for name in suited}
    made: Dict[str, nn.Module] = {}
    for name, layer in suited.items():
        prepared = before[name]
        assert isinstance(prepared, PreparedConvolution)
        made[name] = WinogradConvolution(layer, prepared)
    if is_measured:
        gains = _gains(network, before, made, example_inputs)
        made = {name: layer for name, layer in made.items() if gains[name] >= MARGIN}
    for name, quicker in made.items():
        network.add_submodule(name, quicker)
    return len(made)


def num_winograd_layers(network: nn.Module) -> int:
    """How many layers of a network take Winograd's way."""
    return sum(isinstance(layer, WinogradConvolution) for layer in network.modules())


def suits(layer: nn.Conv2d) -> bool:
    """Whether a convolution of images can be computed so."""
    return has_form(layer) and all(each.dtype == torch.float32 for each in layer.parameters())


def has_form(layer: nn.Conv2d) -> bool:
    """The same of its sizes alone."""
    channels = (layer.out_channels, layer.in_channels)
    sizes = (layer.kernel_size, layer.stride, layer.dilation, layer.groups)
    return winograd_rule.has_form(channels, *sizes) and layer.padding_mode == "zeros"


def _gains(
    network: fx.GraphModule,
    one: Mapping[str, nn.Module],
    other: Mapping[str, nn.Module],
    inputs: Sequence[Any],
) -> Dict[str, float]:
    """How many times as fast the other layers are, each measured within the network.

    There weights have left the cache since the last call, which is what a way with larger weights pays for.
    """
    seconds = (dict.fromkeys(one, float("inf")), dict.fromkeys(other, float("inf")))
    began = time.perf_counter()
    with torch.no_grad(), left_alone(network):
        for number in range(MOST_ROUNDS):
            if number >= LEAST_ROUNDS and time.perf_counter() - began > ENOUGH_S:
                break
            for best, layers in zip(seconds, (one, other)):
                timed = _Timed(network, layers)
                timed.run(*copied(inputs))
                best.update({name: min(best[name], took) for name, took in timed.seconds.items()})
    return {name: seconds[0][name] / seconds[1][name] for name in one}


class _Timed(fx.Interpreter):
    """Runs a network with some layers in place of its own, and notes what each of them takes."""

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


def _activated(value: Tensor, name: str, how: Optional[str]) -> Tensor:
    if name == "gelu":
        return functional.gelu(value, approximate=how or "none")
    return value if name == "none" else _ACTIVATIONS[name](value)
