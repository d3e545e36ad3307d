"""AlexNet in its single-stream form, with adaptive pooling to 6×6 (Krizhevsky, arXiv 1404.5997)."""

from __future__ import annotations

from corewise.measured.workloads.models.image_model import ImageModel
from corewise.measured.workloads.models.layers import (
    AdaptiveAvgPool,
    Conv,
    Dropout,
    Flatten,
    Linear,
    MaxPool,
    ReLU,
    Sequence,
)


def _build_alexnet(num_classes: int) -> Sequence:
    return Sequence(
        (
            Conv(3, 64, kernel=11, stride=4, padding=2),
            ReLU(),
            MaxPool(kernel=3, stride=2),
            Conv(64, 192, kernel=5, padding=2),
            ReLU(),
            MaxPool(kernel=3, stride=2),
            Conv(192, 384, kernel=3, padding=1),
            ReLU(),
            Conv(384, 256, kernel=3, padding=1),
            ReLU(),
            Conv(256, 256, kernel=3, padding=1),
            ReLU(),
            MaxPool(kernel=3, stride=2),
            AdaptiveAvgPool(6),
            Flatten(),
            Dropout(0.5),
            Linear(256 * 6 * 6, 4096),
            ReLU(),
            Dropout(0.5),
            Linear(4096, 4096),
            ReLU(),
            Linear(4096, num_classes),
        )
    )


ALEXNET = ImageModel("alexnet", "AlexNet: five convolutions, three large linear layers", _build_alexnet)
