"""Inception-v3 (Szegedy et al., arXiv 1512.00567) with its auxiliary head, which is used in training only.

The numbers of channels follow the common implementation with 27,161,264 parameters, head included. Branches
follow figures 5, 6, 7 and 10 of the paper; between stages, one branch is a pooling layer.
"""

from __future__ import annotations

from typing import Tuple

from corewise.measured.workloads.models.branch_layers import Branches, WithAuxiliary
from corewise.measured.workloads.models.image_model import ImageModel
from corewise.measured.workloads.models.layers import (
    AdaptiveAvgPool,
    AvgPool,
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    Layer,
    Linear,
    MaxPool,
    ReLU,
    Sequence,
    Sides,
    expand_sides,
)

EPSILON = 0.001
ALONG, ACROSS = (1, 7), (7, 1)
# The auxiliary head convolves 5×5 positions, which smaller images do not provide.
MIN_TRAINED_SIZE = 299


def _build_conv(
    in_channels: int, out_channels: int, kernel: Sides = 1, stride: int = 1, keeps_size: bool = True
) -> Sequence:
    height, width = expand_sides(kernel)
    padding = (height // 2, width // 2) if keeps_size and stride == 1 else 0
    conv = Conv(in_channels, out_channels, kernel, stride, padding, bias=False)
    return Sequence((conv, BatchNorm(out_channels, EPSILON), ReLU()))


def _build_chain(in_channels: int, *steps: Tuple[int, Sides]) -> Sequence:
    """Build consecutive convolutions from pairs of output channels and kernel."""
    layers = []
    for out_channels, kernel in steps:
        layers.append(_build_conv(in_channels, out_channels, kernel))
        in_channels = out_channels
    return Sequence(tuple(layers))


def _build_pooled_branch(in_channels: int, out_channels: int) -> Sequence:
    return Sequence((AvgPool(kernel=3, stride=1, padding=1), _build_conv(in_channels, out_channels)))


def _join_channels(*branches: Layer) -> Branches:
    return Branches(branches, join="channels")


def _build_small_kernel_block(in_channels: int, pooled: int) -> Branches:
    return _join_channels(
        _build_conv(in_channels, 64),
        _build_chain(in_channels, (48, 1), (64, 5)),
        _build_chain(in_channels, (64, 1), (96, 3), (96, 3)),
        _build_pooled_branch(in_channels, pooled),
    )


def _build_long_kernel_block(between: int) -> Branches:
    twice = ((between, ACROSS), (between, ALONG), (between, ACROSS), (192, ALONG))
    return _join_channels(
        _build_conv(768, 192),
        _build_chain(768, (between, 1), (between, ALONG), (192, ACROSS)),
        _build_chain(768, (between, 1), *twice),
        _build_pooled_branch(768, 192),
    )


def _build_spread_kernel_block(in_channels: int) -> Branches:
    spread = _join_channels(_build_conv(384, 384, (1, 3)), _build_conv(384, 384, (3, 1)))
    return _join_channels(
        _build_conv(in_channels, 320),
        Sequence((_build_conv(in_channels, 384), spread)),
        Sequence((_build_chain(in_channels, (448, 1), (384, 3)), spread)),
        _build_pooled_branch(in_channels, 192),
    )


def _build_reduction(*chains: Tuple[Layer, int, int]) -> Branches:
    """Build chains that end in a stride-2 convolution (from, to channels), and a pooling branch."""
    ends = (Sequence((chain, _build_conv(before, after, 3, stride=2))) for chain, before, after in chains)
    return _join_channels(*ends, MaxPool(kernel=3, stride=2))


def _build_inception_v3(num_classes: int) -> WithAuxiliary:
    trunk = (
        _build_conv(3, 32, 3, stride=2),
        _build_conv(32, 32, 3, keeps_size=False),
        _build_conv(32, 64, 3),
        MaxPool(kernel=3, stride=2),
        _build_conv(64, 80),
        _build_conv(80, 192, 3, keeps_size=False),
        MaxPool(kernel=3, stride=2),
        _build_small_kernel_block(192, 32),
        _build_small_kernel_block(256, 64),
        _build_small_kernel_block(288, 64),
        _build_reduction((Sequence(()), 288, 384), (_build_chain(288, (64, 1), (96, 3)), 96, 96)),
        *map(_build_long_kernel_block, (128, 160, 160, 192)),
    )
    auxiliary = (
        AvgPool(kernel=5, stride=3),
        _build_conv(768, 128),
        _build_conv(128, 768, 5, keeps_size=False),
        AdaptiveAvgPool(1),
        Flatten(),
        Linear(768, num_classes),
    )
    rest = (
        _build_reduction(
            (_build_chain(768, (192, 1)), 192, 320),
            (_build_chain(768, (192, 1), (192, ALONG), (192, ACROSS)), 192, 192),
        ),
        _build_spread_kernel_block(1280),
        _build_spread_kernel_block(2048),
        AdaptiveAvgPool(1),
        Dropout(0.5),
        Flatten(),
        Linear(2048, num_classes),
    )
    return WithAuxiliary(Sequence(trunk), Sequence(auxiliary), Sequence(rest))


INCEPTION_V3 = ImageModel(
    "inception_v3",
    "Inception-v3: parallel branches of convolutions, auxiliary head in training",
    _build_inception_v3,
    concurrent=True,
    image_size=299,
    check_image_size=96,
    check_image_size_train=MIN_TRAINED_SIZE,
    checks_statistics=False,
)
