"""Write a collection of real JPEG files with the sizes of `draw_collection_sizes`, from a seed.

Measured side: standard library, numpy and Pillow only, Python 3.9.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, Optional, Union

import numpy as np

from corewise.accelerate.batching.collection_sizes import MEAN_MEGAPIXELS, draw_collection_sizes
from corewise.accelerate.batching.errors import BatchingError

# Pixels per period of the stripes, which keep their width when an image is larger.
_STRIPE_PIXELS = 16.0
# Deviation of the direction, as a share of the distance between classes: 98 % of the images can be classified.
_DIRECTION_DEVIATION = 0.22
# Contrast of the stripes and deviation of the noise, in grey levels. Noise makes files as large as photographs.
_STRIPE_CONTRAST, _NOISE_DEVIATION = 40.0, 12.0
# Noise is drawn once per image as a tile of this side.
_NOISE_SIDE = 256
_JPEG_QUALITY = 85


def generate_collection(
    folder: Union[str, os.PathLike[str]],
    num_images: int,
    *,
    seed: int = 0,
    mean_megapixels: float = MEAN_MEGAPIXELS,
    num_classes: int = 4,
    report: Optional[Callable[[int, int], None]] = None,
) -> None:
    """Write JPEG files to a new or empty folder, one subfolder per class.

    A class is the direction of faint stripes, so it can be learnt at any size and shape, and shape does not reveal it.
    Directions vary within a class, so that the best possible accuracy is 98 %.

    Args:
        folder: where to write; it must be empty or absent.
        num_images: how many.
        seed: decides sizes, classes and pixels.
        mean_megapixels: the expected mean area: 6.6 as in the paper, or less for small machines.
        report: called with the number of files written so far and of all files.

    Raises:
        BatchingError: the folder is not empty, or Pillow is missing.
    """
    root = Path(folder)
    if num_images < 1 or num_classes < 1:
        raise BatchingError(f"{num_images} images in {num_classes} classes: at least 1 of each is needed")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise BatchingError(f"{root} is not an empty folder: name a new one, so that no file is overwritten")
    _require_pillow()
    sizes = draw_collection_sizes(num_images, seed, mean_megapixels)
    classes = np.random.default_rng([seed, 100]).integers(0, num_classes, num_images).tolist()
    for label in sorted(set(classes)):
        (root / f"class-{label}").mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        height, width = sizes[number].tolist()
        rng = np.random.default_rng([seed, 200, number])
        angle = np.pi * (classes[number] + _DIRECTION_DEVIATION * rng.standard_normal()) / num_classes
        path = root / f"class-{classes[number]}" / f"image-{number:06d}.jpg"
        _write_image(path, height, width, angle, rng)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for number, _ in enumerate(pool.map(write, range(num_images)), start=1):
            if report is not None:
                report(number, num_images)


def _require_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as problem:
        raise BatchingError(f"writing images needs Pillow: pip install Pillow ({problem})") from problem


def _write_image(path: Path, height: int, width: int, angle: float, rng: np.random.Generator) -> None:
    """Write one image: coloured clouds, faint stripes in the direction of the class, and noise."""
    from PIL import Image

    clouds = rng.integers(60, 196, (4, 4, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(clouds).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    phase, period = rng.uniform(0, 2 * np.pi), _STRIPE_PIXELS * rng.uniform(0.8, 1.25)
    across = np.cos(angle) * np.arange(width, dtype=np.float32)[None, :]
    along = np.sin(angle) * np.arange(height, dtype=np.float32)[:, None]
    stripes = _STRIPE_CONTRAST * np.sin((across + along) * np.float32(2 * np.pi / period) + np.float32(phase))
    tile = rng.normal(0, _NOISE_DEVIATION, (_NOISE_SIDE, _NOISE_SIDE)).astype(np.int16)
    repeats = (-(-height // _NOISE_SIDE), -(-width // _NOISE_SIDE))
    pattern = stripes.astype(np.int16) + np.tile(tile, repeats)[:height, :width]
    pixels = np.clip(smooth + pattern[:, :, None], 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=_JPEG_QUALITY)
