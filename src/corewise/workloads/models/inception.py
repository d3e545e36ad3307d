"""Inception-v3 (Szegedy et al., arXiv 1512.00567) with its auxiliary head, which computes in training alone.

The numbers of channels are those of the widespread implementation that has 27,161,264 parameters with the
head. Branches are as wide as the paper's figures 5, 6, 7 and 10 show them; between stages a pooling is one.
"""

from __future__ import annotations

from typing import Tuple

from corewise.workloads.branch_layers import Branches, WithAuxiliary
from corewise.workloads.layers import (
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
    both,
)
from corewise.workloads.models.model import Model

EPSILON = 0.001
ALONG, ACROSS = (1, 7), (7, 1)
LEAST_TRAINED_SIZE = 299  # the head convolves 5×5 places, and smaller images leave fewer


def _conv(
    in_channels: int, out_channels: int, kernel: Sides = 1, stride: int = 1, keeps_size: bool = True
) -> Sequence:
    height, width = both(kernel)
    padding = (height // 2, width // 2) if keeps_size and stride == 1 else 0
    conv = Conv(in_channels, out_channels, kernel, stride, padding, bias=False)
    return Sequence((conv, BatchNorm(out_channels, EPSILON), ReLU()))


def _chain(in_channels: int, *steps: Tuple[int, Sides]) -> Sequence:
    """Convolutions of so many output channels and such kernels one after another."""
    layers = []
    for out_channels, kernel in steps:
        layers.append(_conv(in_channels, out_channels, kernel))
        in_channels = out_channels
    return Sequence(tuple(layers))


def _pooled(in_channels: int, out_channels: int) -> Sequence:
    return Sequence((AvgPool(kernel=3, stride=1, padding=1), _conv(in_channels, out_channels)))


def _side_by_side(*branches: Layer) -> Branches:
    return Branches(branches, join="channels")


def _small_kernels(in_channels: int, pooled: int) -> Branches:
    return _side_by_side(
        _conv(in_channels, 64),
        _chain(in_channels, (48, 1), (64, 5)),
        _chain(in_channels, (64, 1), (96, 3), (96, 3)),
        _pooled(in_channels, pooled),
    )


def _long_kernels(between: int) -> Branches:
    twice = ((between, ACROSS), (between, ALONG), (between, ACROSS), (192, ALONG))
    return _side_by_side(
        _conv(768, 192),
        _chain(768, (between, 1), (between, ALONG), (192, ACROSS)),
        _chain(768, (between, 1), *twice),
        _pooled(768, 192),
    )


def _spread_kernels(in_channels: int) -> Branches:
    spread = _side_by_side(_conv(384, 384, (1, 3)), _conv(384, 384, (3, 1)))
    return _side_by_side(
        _conv(in_channels, 320),
        Sequence((_conv(in_channels, 384), spread)),
        Sequence((_chain(in_channels, (448, 1), (384, 3)), spread)),
        _pooled(in_channels, 192),
    )


def _halved(*chains: Tuple[Layer, int, int]) -> Branches:
    """Chains that end in a convolution of stride 2 (from, to channels), and a pooling beside them."""
    ends = (Sequence((chain, _conv(before, after, 3, stride=2))) for chain, before, after in chains)
    return _side_by_side(*ends, MaxPool(kernel=3, stride=2))


def _inception_v3(num_classes: int) -> WithAuxiliary:
    trunk = (
        _conv(3, 32, 3, stride=2),
        _conv(32, 32, 3, keeps_size=False),
        _conv(32, 64, 3),
        MaxPool(kernel=3, stride=2),
        _conv(64, 80),
        _conv(80, 192, 3, keeps_size=False),
        MaxPool(kernel=3, stride=2),
        _small_kernels(192, 32),
        _small_kernels(256, 64),
        _small_kernels(288, 64),
        _halved((Sequence(()), 288, 384), (_chain(288, (64, 1), (96, 3)), 96, 96)),
        *map(_long_kernels, (128, 160, 160, 192)),
    )
    auxiliary = (
        AvgPool(kernel=5, stride=3),
        _conv(768, 128),
        _conv(128, 768, 5, keeps_size=False),
        AdaptiveAvgPool(1),
        Flatten(),
        Linear(768, num_classes),
    )
    rest = (
        _halved(
            (_chain(768, (192, 1)), 192, 320), (_chain(768, (192, 1), (192, ALONG), (192, ACROSS)), 192, 192)
        ),
        _spread_kernels(1280),
        _spread_kernels(2048),
        AdaptiveAvgPool(1),
        Dropout(0.5),
        Flatten(),
        Linear(2048, num_classes),
    )
    return WithAuxiliary(Sequence(trunk), Sequence(auxiliary), Sequence(rest))


INCEPTION_V3 = Model(
    "inception_v3",
    "Inception-v3: branches of convolutions side by side, auxiliary head in training",
    _inception_v3,
    concurrent=True,
    image_size=299,
    check_image_size=96,
    check_image_size_train=LEAST_TRAINED_SIZE,
    checks_statistics=False,
)
