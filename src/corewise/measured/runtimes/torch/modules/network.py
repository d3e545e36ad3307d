"""Build a torch module from the description of a network.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Callable, Mapping, Type

import torch
from torch import Tensor, nn

from corewise.measured.runtimes.torch.modules.branch_modules import (
    AuxiliaryHeadModule,
    BranchesModule,
    FeatureSliceModule,
    GatedModule,
)
from corewise.measured.runtimes.torch.modules.sequence_modules import (
    AttentionModule,
    LstmModule,
    MeanOverStepsModule,
    TimeMajorModule,
)
from corewise.measured.workloads.models import branch_layers, layers, sequence_layers

# Near zero as in arXiv 1706.02677, so that deep networks start well-conditioned.
RESIDUAL_GAIN = 0.1
# As chosen by AlexNet's authors: the first loss is near the logarithm of the number of classes.
LINEAR_DEVIATION = 0.01


class UninitializedConv2d(nn.Conv2d):
    """A convolution whose weights `draw_weights` draws later."""

    def reset_parameters(self) -> None:
        return None


class UninitializedLinear(nn.Linear):
    """A linear layer whose weights `draw_weights` draws later."""

    keeps_scale = False

    def reset_parameters(self) -> None:
        return None


class UninitializedEmbedding(nn.Embedding):
    """An embedding table whose weights `draw_weights` draws later."""

    def reset_parameters(self) -> None:
        return None


class ResidualModule(nn.Module):
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
    """Build the module with weights drawn from the seed, equal on all ranks.

    side_by_side: Branches run concurrently. training: It also returns the outputs of auxiliary heads.
    """
    network = build_module(description)
    draw_weights(network, torch.Generator().manual_seed(seed))
    for module in network.modules():
        if isinstance(module, BranchesModule):
            module.side_by_side = side_by_side
        elif isinstance(module, AuxiliaryHeadModule):
            module.returns_auxiliary = training
    return network


@torch.no_grad()
def draw_weights(network: nn.Module, generator: torch.Generator) -> None:
    """Draw weights that keep the size of values from layer to layer (He et al., arXiv 1502.01852)."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            he = math.sqrt(2 / module.weight[0].numel())
            keeps_scale = isinstance(module, nn.Conv2d) or (
                isinstance(module, UninitializedLinear) and module.keeps_scale
            )
            module.weight.normal_(0.0, he if keeps_scale else LINEAR_DEVIATION, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(generator=generator)
        elif isinstance(module, nn.LSTM):
            # The same limit as in torch.
            limit = 1 / math.sqrt(module.hidden_size)
            for values in module.parameters():
                values.uniform_(-limit, limit, generator=generator)
        elif isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
            module.reset_parameters()
    for module in network.modules():
        if isinstance(module, ResidualModule):
            norms = [m for m in module.body.modules() if isinstance(m, nn.BatchNorm2d)]
            for norm in norms[-1:]:
                norm.weight.fill_(RESIDUAL_GAIN)


def build_module(layer: layers.Layer) -> nn.Module:
    """Build the module of a layer and all layers within, without drawing weights."""
    try:
        return _BUILDERS[type(layer)](layer)
    except KeyError:
        raise NotImplementedError(f"the torch runtime has no module for {type(layer).__name__}") from None


def _build_conv(layer: layers.Conv) -> nn.Module:
    return UninitializedConv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel,
        layer.stride,
        layer.padding,
        groups=layer.groups,
        bias=layer.bias,
    )


def _build_linear(layer: layers.Linear) -> nn.Module:
    made = UninitializedLinear(layer.in_features, layer.out_features, bias=layer.bias)
    made.keeps_scale = layer.keeps_scale
    return made


def _build_residual(layer: layers.Residual) -> nn.Module:
    return ResidualModule(
        build_module(layer.body), nn.Identity() if layer.shortcut is None else build_module(layer.shortcut)
    )


def _build_branches(layer: branch_layers.Branches) -> nn.Module:
    return BranchesModule(map(build_module, layer.branches), layer.join)


def _build_gated(layer: branch_layers.Gated) -> nn.Module:
    num_experts = len(layer.experts.branches)
    return GatedModule(build_module(layer.gate), build_module(layer.experts), layer.top, num_experts)


def _build_auxiliary_head(layer: branch_layers.WithAuxiliary) -> nn.Module:
    return AuxiliaryHeadModule(*map(build_module, layer.list_children()))


_BUILDERS: Mapping[Type[layers.Layer], Callable[..., nn.Module]] = {
    layers.Conv: _build_conv,
    layers.Linear: _build_linear,
    layers.BatchNorm: lambda layer: nn.BatchNorm2d(layer.channels, layer.epsilon),
    layers.ReLU: lambda layer: nn.ReLU(inplace=layer.in_place),
    layers.MaxPool: lambda layer: nn.MaxPool2d(layer.kernel, layer.stride, layer.padding),
    layers.AvgPool: lambda layer: nn.AvgPool2d(layer.kernel, layer.stride, layer.padding),
    layers.AdaptiveAvgPool: lambda layer: nn.AdaptiveAvgPool2d(layer.size),
    layers.Flatten: lambda layer: nn.Flatten(1),
    layers.Dropout: lambda layer: nn.Dropout(layer.probability),
    layers.Sequence: lambda layer: nn.Sequential(*(build_module(child) for child in layer.layers)),
    layers.Residual: _build_residual,
    branch_layers.Branches: _build_branches,
    branch_layers.Gated: _build_gated,
    branch_layers.WithAuxiliary: _build_auxiliary_head,
    branch_layers.Part: lambda layer: FeatureSliceModule(layer.first, layer.num),
    branch_layers.Embedding: lambda layer: UninitializedEmbedding(layer.num_rows, layer.features),
    sequence_layers.TimeMajor: lambda layer: TimeMajorModule(),
    sequence_layers.Lstm: lambda layer: LstmModule(layer.in_features, layer.hidden, layer.reverse),
    sequence_layers.Attention: lambda layer: AttentionModule(layer.num_heads),
    sequence_layers.LayerNorm: lambda layer: nn.LayerNorm(layer.features),
    sequence_layers.MeanOverSteps: lambda layer: MeanOverStepsModule(layer.time_major),
}
