"""A dataset of the images of a folder, decoded with Pillow, upright, in colour, and labelled by folder.

Measured side: standard library, numpy, torch and Pillow only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Callable, Optional, Tuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from corewise.accelerate.batching.collection_sizes import scale_size
from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.image_scan import ScannedFolder

try:
    from PIL import Image, ImageOps
except ImportError as problem:
    raise ImportError(f"decoding images needs Pillow: pip install Pillow ({problem})") from problem

# A 16-bit grey value becomes an 8-bit one.
_GREY_STEPS = 257.0
_WIDE_GREY = ("I", "I;16", "I;16B", "I;16L")


class ImageDataset(Dataset[Tuple[Tensor, int]]):
    """The images that `read_image_sizes` found, as float tensors from 0 to 1 with three channels, and their labels.

    The label is the number of the image's folder among all folders with images.

    Args:
        found: what `read_image_sizes` returned.
        short_side: scale each image to this short side; by default images keep their size.
        transform: applied to each tensor; it must keep height and width.
    """

    def __init__(
        self,
        found: ScannedFolder,
        short_side: Optional[int] = None,
        transform: Optional[Callable[[Tensor], Tensor]] = None,
    ) -> None:
        self._paths, self._transform, self._short_side = found.paths, transform, short_side
        self._sizes = found.sizes if short_side is None else _scale_sizes(found, short_side)
        folders = [os.path.dirname(path) for path in found.paths]
        numbers = {folder: number for number, folder in enumerate(sorted(set(folders)))}
        self.labels = tuple(numbers[folder] for folder in folders)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Tuple[Tensor, int]:
        path, (height, width) = self._paths[index], self._sizes[index].tolist()
        try:
            with Image.open(path) as image:
                if self._short_side is not None:
                    # JPEG files decode faster at a half, a quarter or an eighth of their size.
                    image.draft("RGB", (self._short_side, self._short_side))
                upright = _convert_to_rgb(ImageOps.exif_transpose(image))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
            raise BatchingError(f"{path} cannot be decoded: {problem}") from problem
        if self._short_side is not None:
            upright = upright.resize((width, height), Image.Resampling.BILINEAR)
        if upright.size != (width, height):
            raise BatchingError(
                f"{path} has {upright.size[1]}×{upright.size[0]} pixels, but its header said {height}×{width}: "
                "the folder has changed; call read_image_sizes again"
            )
        pixels = torch.from_numpy(np.array(upright)).permute(2, 0, 1).to(torch.float32).div_(255)
        return (self._transform(pixels) if self._transform else pixels), self.labels[index]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Height and width of each image as returned, for `ShapeBatchSampler`."""
        return self._sizes


def _scale_sizes(found: ScannedFolder, short_side: int) -> NDArray[np.int64]:
    return np.array([scale_size(height, width, short_side) for height, width in found.sizes.tolist()], dtype=np.int64)


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    """Return the image in 8-bit colour without alpha; Pillow alone would clip 16-bit grey."""
    if image.mode in _WIDE_GREY:
        return Image.fromarray((np.asarray(image) / _GREY_STEPS).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        # Pillow warns of a direct conversion.
        image = image.convert("RGBA")
    return image.convert("RGB")
