"""A described network as a torch module.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping, Type

import torch
from torch import Tensor, nn

from corewise.runtimes.torch.branches import Branches, Gated, Part, WithAuxiliary
from corewise.runtimes.torch.sequences import Attention, Lstm, MeanOverSteps, TimeMajor
from corewise.workloads import branch_layers, layers, sequence_layers

RESIDUAL_GAIN = 0.1  # near zero as in arXiv 1706.02677, so that deep networks start well-conditioned
LINEAR_DEVIATION = 0.01  # as AlexNet's authors: the first loss is near the logarithm of the number of classes


class Conv2d(nn.Conv2d):
    """A convolution whose values are drawn later, once."""

    def reset_parameters(self) -> None:
        return None


class Linear(nn.Linear):
    """A linear layer whose values are drawn later, once."""

    keeps_scale = False

    def reset_parameters(self) -> None:
        return None


class Embedding(nn.Embedding):
    """A table whose values are drawn later, once."""

    def reset_parameters(self) -> None:
        return None


class Residual(nn.Module):
    """The sum of a body and a shortcut over the same input."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.shortcut(x)  # type: ignore[no-any-return]


def build_network(
    description: layers.Layer, seed: int, *, side_by_side: bool = False, training: bool = False
) -> nn.Module:
    """The module, its values drawn from the seed: equal on all ranks.

    Where asked its branches run side by side, and it returns what only training needs.
    """
    network = to_module(description)
    initialise(network, torch.Generator().manual_seed(seed))
    for module in network.modules():
        if isinstance(module, Branches):
            module.side_by_side = side_by_side
        elif isinstance(module, WithAuxiliary):
            module.asks_auxiliary = training
    return network


@torch.no_grad()
def initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Draw weights that keep the size of values from layer to layer (He et al., arXiv 1502.01852)."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            he = math.sqrt(2 / module.weight[0].numel())
            keeps_scale = isinstance(module, nn.Conv2d) or getattr(module, "keeps_scale", False)
            module.weight.normal_(0.0, he if keeps_scale else LINEAR_DEVIATION, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(generator=generator)
        elif isinstance(module, nn.LSTM):
            reach = 1 / math.sqrt(module.hidden_size)  # as torch's own
            for values in module.parameters():
                values.uniform_(-reach, reach, generator=generator)
        elif isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            module.reset_parameters()
    for module in network.modules():
        if isinstance(module, Residual):
            norms = [m for m in module.body.modules() if isinstance(m, nn.BatchNorm2d)]
            for norm in norms[-1:]:
                norm.weight.fill_(RESIDUAL_GAIN)


def to_module(layer: layers.Layer) -> nn.Module:
    """The module of one layer and all within it, its values not yet drawn."""
    try:
        return _BUILDERS[type(layer)](layer)
    except KeyError:
        raise NotImplementedError(f"the torch runtime has no module for {type(layer).__name__}") from None


def _conv(layer: layers.Conv) -> nn.Module:
    return Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel,
        layer.stride,
        layer.padding,
        groups=layer.groups,
        bias=layer.bias,
    )


def _linear(layer: layers.Linear) -> nn.Module:
    made = Linear(layer.in_features, layer.out_features, bias=layer.bias)
    made.keeps_scale = layer.keeps_scale
    return made


def _residual(layer: layers.Residual) -> nn.Module:
    return Residual(
        to_module(layer.body), nn.Identity() if layer.shortcut is None else to_module(layer.shortcut)
    )


def _branches(layer: branch_layers.Branches) -> nn.Module:
    return Branches(map(to_module, layer.branches), layer.join)


def _gated(layer: branch_layers.Gated) -> nn.Module:
    num_experts = len(layer.experts.branches)
    return Gated(to_module(layer.gate), to_module(layer.experts), layer.top, num_experts)


def _with_auxiliary(layer: branch_layers.WithAuxiliary) -> nn.Module:
    return WithAuxiliary(*map(to_module, layer.children()))


_BUILDERS: Mapping[Type[layers.Layer], Callable[..., nn.Module]] = {
    layers.Conv: _conv,
    layers.Linear: _linear,
    layers.BatchNorm: lambda layer: nn.BatchNorm2d(layer.channels, layer.epsilon),
    layers.ReLU: lambda layer: nn.ReLU(inplace=layer.in_place),
    layers.MaxPool: lambda layer: nn.MaxPool2d(layer.kernel, layer.stride, layer.padding),
    layers.AvgPool: lambda layer: nn.AvgPool2d(layer.kernel, layer.stride, layer.padding),
    layers.AdaptiveAvgPool: lambda layer: nn.AdaptiveAvgPool2d(layer.size),
    layers.Flatten: lambda layer: nn.Flatten(1),
    layers.Dropout: lambda layer: nn.Dropout(layer.probability),
    layers.Sequence: lambda layer: nn.Sequential(*(to_module(child) for child in layer.layers)),
    layers.Residual: _residual,
    branch_layers.Branches: _branches,
    branch_layers.Gated: _gated,
    branch_layers.WithAuxiliary: _with_auxiliary,
    branch_layers.Part: lambda layer: Part(layer.first, layer.num),
    branch_layers.Embedding: lambda layer: Embedding(layer.num_rows, layer.features),
    sequence_layers.TimeMajor: lambda layer: TimeMajor(),
    sequence_layers.Lstm: lambda layer: Lstm(layer.in_features, layer.hidden, layer.reverse),
    sequence_layers.Attention: lambda layer: Attention(layer.num_heads),
    sequence_layers.LayerNorm: lambda layer: nn.LayerNorm(layer.features),
    sequence_layers.MeanOverSteps: lambda layer: MeanOverSteps(layer.time_major),
}
