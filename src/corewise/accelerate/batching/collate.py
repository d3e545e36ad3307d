"""Collate functions: pad images to the largest of their batch, or put them on one canvas, with masks.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils.data import default_collate

from corewise.accelerate.batching.canvas_packing import pack_canvas
from corewise.accelerate.batching.errors import BatchingError


class PaddedBatch(NamedTuple):
    """Images of one batch, padded with zeros at the bottom and on the right.

    Attributes:
        images: batch × channels × height × width.
        masks: batch × height × width, True on pixels that belong to the image.
        sizes: height and width of each image without padding.
        targets: what the samples hold besides the image, collated as torch does; None if there is nothing.
    """

    images: Tensor
    masks: Tensor
    sizes: Tensor
    targets: Any


class PackedBatch(NamedTuple):
    """Images of one batch on one canvas of zeros.

    Attributes:
        images: 1 × channels × height × width.
        owners: 1 × height × width, the number of the image that owns a pixel, counted from 1; 0 on free pixels.
        boxes: top, left, height and width of each image.
        targets: as in `PaddedBatch`.
    """

    images: Tensor
    owners: Tensor
    boxes: Tensor
    targets: Any


class PadCollate:
    """Pads the images of a batch to its largest height and width, for `DataLoader(collate_fn=…)`.

    A sample is an image (channels × height × width), or a tuple that begins with one.

    Args:
        multiple_of: height and width of the batch are rounded up to a multiple of it.
    """

    def __init__(self, multiple_of: int = 1) -> None:
        self._multiple_of = multiple_of

    def __call__(self, samples: Sequence[Any]) -> PaddedBatch:
        images, targets = _split_samples(samples)
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        height, width = (-(-max(side) // self._multiple_of) * self._multiple_of for side in zip(*sizes))
        padded = images[0].new_zeros((len(images), images[0].shape[0], height, width))
        masks = torch.zeros((len(images), height, width), dtype=torch.bool)
        for i, (image, (own_height, own_width)) in enumerate(zip(images, sizes)):
            padded[i, :, :own_height, :own_width] = image
            masks[i, :own_height, :own_width] = True
        return PaddedBatch(padded, masks, torch.tensor(sizes), targets)


class PackCollate:
    """Puts the images of a batch on one canvas, at the places that the policy `pack` has planned.

    Args:
        gap, multiple_of: as given to `ShapeBatchSampler`.
    """

    def __init__(self, gap: int = 0, multiple_of: int = 1) -> None:
        self._gap, self._multiple_of = gap, multiple_of

    def __call__(self, samples: Sequence[Any]) -> PackedBatch:
        images, targets = _split_samples(samples)
        heights, widths = [image.shape[-2] for image in images], [image.shape[-1] for image in images]
        canvas = pack_canvas(heights, widths, self._gap, self._multiple_of)
        packed = images[0].new_zeros((1, images[0].shape[0], canvas.height, canvas.width))
        owners = torch.zeros((1, canvas.height, canvas.width), dtype=torch.int32)
        boxes = []
        for i, (image, (top, left)) in enumerate(zip(images, canvas.places)):
            bottom, right = top + heights[i], left + widths[i]
            packed[0, :, top:bottom, left:right] = image
            owners[0, top:bottom, left:right] = i + 1
            boxes.append((top, left, heights[i], widths[i]))
        return PackedBatch(packed, owners, torch.tensor(boxes), targets)


def _split_samples(samples: Sequence[Any]) -> Tuple[List[Tensor], Any]:
    """Return the images of samples, and everything else collated."""
    if not samples:
        raise BatchingError("a batch without samples cannot be collated")
    images = [sample if isinstance(sample, Tensor) else sample[0] for sample in samples]
    for number, image in enumerate(images):
        if not isinstance(image, Tensor) or image.ndim != 3:
            found = (
                f"the shape {tuple(image.shape)}" if isinstance(image, Tensor) else f"the type {type(image).__name__}"
            )
            raise BatchingError(
                f"sample {number} of the batch has {found}: a tensor of channels × height × width is needed first"
            )
        if image.shape[0] != images[0].shape[0]:
            raise BatchingError(
                f"sample {number} of the batch has {image.shape[0]} channels and the first has {images[0].shape[0]}: "
                "convert all images to the same, for example with Pillow's convert('RGB')"
            )
    others = [None if isinstance(sample, Tensor) else tuple(sample[1:]) for sample in samples]
    if not others[0]:
        return images, None
    collated = default_collate(others)
    return images, collated[0] if len(collated) == 1 else collated
