"""Residual networks (He et al., arXiv 1512.03385), in the form that strides in the 3×3 convolution (v1.5)."""

from __future__ import annotations

import functools
from typing import Optional, Tuple

from corewise.measured.workloads.models.image_model import ImageModel
from corewise.measured.workloads.models.layers import (
    AdaptiveAvgPool,
    BatchNorm,
    Conv,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    ReLU,
    Residual,
    Sequence,
)

STAGE_CHANNELS = (64, 128, 256, 512)


def _build_normed_conv(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> Tuple[Layer, ...]:
    """Build a padded convolution and its normalisation."""
    conv = Conv(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return (conv, BatchNorm(out_channels))


def _build_residual(body: Tuple[Layer, ...], in_channels: int, out_channels: int, stride: int) -> Sequence:
    shortcut: Optional[Layer] = None
    if stride != 1 or in_channels != out_channels:
        shortcut = Sequence(_build_normed_conv(in_channels, out_channels, kernel=1, stride=stride))
    return Sequence((Residual(Sequence(body), shortcut), ReLU()))


def _build_basic_block(in_channels: int, channels: int, stride: int) -> Tuple[Sequence, int]:
    """Build a block of two 3×3 convolutions; also return its output channels."""
    first = _build_normed_conv(in_channels, channels, kernel=3, stride=stride)
    body = (*first, ReLU(), *_build_normed_conv(channels, channels, kernel=3))
    return _build_residual(body, in_channels, channels, stride), channels


def _build_bottleneck(
    in_channels: int, channels: int, stride: int, groups: int, group_width: int
) -> Tuple[Sequence, int]:
    """Build a block of 1×1, 3×3 and 1×1 convolutions; also return its output channels."""
    width = channels * group_width // 64 * groups
    out_channels = 4 * channels
    body = (
        *_build_normed_conv(in_channels, width, kernel=1),
        ReLU(),
        *_build_normed_conv(width, width, kernel=3, stride=stride, groups=groups),
        ReLU(),
        *_build_normed_conv(width, out_channels, kernel=1),
    )
    return _build_residual(body, in_channels, out_channels, stride), out_channels


def _build_resnet(
    num_classes: int, depths: Tuple[int, ...], bottleneck: bool, groups: int = 1, group_width: int = 64
) -> Sequence:
    layers = [*_build_normed_conv(3, 64, kernel=7, stride=2), ReLU(), MaxPool(kernel=3, stride=2, padding=1)]
    in_channels = 64
    for stage, (channels, depth) in enumerate(zip(STAGE_CHANNELS, depths)):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            if bottleneck:
                layer, in_channels = _build_bottleneck(in_channels, channels, stride, groups, group_width)
            else:
                layer, in_channels = _build_basic_block(in_channels, channels, stride)
            layers.append(layer)
    return Sequence((*layers, AdaptiveAvgPool(1), Flatten(), Linear(in_channels, num_classes)))


def _build_model(
    name: str, summary: str, depths: Tuple[int, ...], bottleneck: bool, groups: int = 1, group_width: int = 64
) -> ImageModel:
    layers_for = functools.partial(
        _build_resnet, depths=depths, bottleneck=bottleneck, groups=groups, group_width=group_width
    )
    return ImageModel(name, summary, layers_for)


RESNET18 = _build_model("resnet18", "ResNet-18: basic residual blocks", (2, 2, 2, 2), False)
RESNET34 = _build_model("resnet34", "ResNet-34: basic residual blocks", (3, 4, 6, 3), False)
RESNET50 = _build_model("resnet50", "ResNet-50 v1.5: bottleneck residual blocks", (3, 4, 6, 3), True)
RESNEXT50_32X4D = _build_model(
    "resnext50_32x4d", "ResNeXt-50: bottlenecks with 32 groups of 4 channels", (3, 4, 6, 3), True, 32, 4
)
WIDE_RESNET101_2 = _build_model(
    "wide_resnet101_2", "Wide ResNet-101-2: 101 layers, bottlenecks twice as wide", (3, 4, 23, 3), True, 1, 128
)
