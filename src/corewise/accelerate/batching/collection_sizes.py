"""Draw image sizes with the statistics of the collection of Parés et al. (2021), from a seed.

Measured side: standard library and numpy only, Python 3.9.

The paper (Size & Shape Matters, DOI 10.14529/jsfi210103) states a mean of 6.6 megapixels, and for ten random batches
the informative and the padded megapixels. The parameters below reproduce them: batches of 32 images with a short side
of 500 pixels hold 11.5 informative and 47 padded megapixels (published: 11.5 and 46.8; extremes 25.4 and 99.4, here 24
and 96), batches of 4 originals 26 and 55 (published: 34.6 and 61.5, in ten batches above the mean of the collection).
"""

from __future__ import annotations

from typing import Tuple

import numpy as np
from numpy.typing import NDArray

from corewise.accelerate.batching.errors import BatchingError

MEAN_MEGAPIXELS = 6.6
# Area: lognormal with this deviation of its logarithm, cut at this multiple of the mean.
AREA_DEVIATION, MAX_AREA_OVER_MEAN = 0.75, 15.0
# Long side over short side: 1 + a lognormal number; half of the images are portraits.
RATIO_MEDIAN, RATIO_DEVIATION = 0.333, 0.5
# A few images are scrolls and panoramas, whose ratio is 1.8 + an exponential number of this mean.
LONG_SHARE, LONG_START, LONG_MEAN, MAX_RATIO = 0.05, 1.8, 0.9, 8.0
# The short side of the paper's mid resolution.
MID_SHORT_SIDE = 500

Sizes = NDArray[np.int64]


def draw_collection_sizes(num_images: int, seed: int = 0, mean_megapixels: float = MEAN_MEGAPIXELS) -> Sizes:
    """Draw heights and widths of a collection, one row per image.

    Args:
        num_images: how many; the paper's collection holds 37,407.
        seed: decides all sizes. A collection begins with the images of a smaller one of the same seed.
        mean_megapixels: the expected mean area. A smaller one scales all images and keeps their ratios.
    """
    if num_images < 0 or not mean_megapixels > 0:
        raise BatchingError(f"{num_images} images of {mean_megapixels} megapixels: both must be positive")
    # Each quantity has its own stream, so the first images do not depend on the number of images.
    streams = [np.random.default_rng([seed, number]) for number in range(5)]
    ratios = 1.0 + RATIO_MEDIAN * np.exp(RATIO_DEVIATION * streams[0].standard_normal(num_images))
    is_long = streams[1].random(num_images) < LONG_SHARE
    ratios = np.where(is_long, LONG_START + LONG_MEAN * streams[2].standard_exponential(num_images), ratios)
    ratios = np.minimum(ratios, MAX_RATIO)
    relative = np.exp(AREA_DEVIATION * streams[3].standard_normal(num_images) - AREA_DEVIATION**2 / 2)
    areas = 1e6 * mean_megapixels * np.minimum(relative, MAX_AREA_OVER_MEAN)
    short_sides = np.maximum(1, np.rint(np.sqrt(areas / ratios))).astype(np.int64)
    long_sides = np.maximum(short_sides, np.rint(short_sides * ratios).astype(np.int64))
    is_portrait = streams[4].random(num_images) < 0.5
    return np.stack(
        [np.where(is_portrait, long_sides, short_sides), np.where(is_portrait, short_sides, long_sides)], axis=1
    )


def scale_short_side(sizes: Sizes, short_side: int = MID_SHORT_SIDE) -> Sizes:
    """Return the sizes after scaling every image to this short side, as the paper's mid resolution does."""
    return np.array([scale_size(height, width, short_side) for height, width in sizes.tolist()], dtype=np.int64)


def scale_size(height: int, width: int, short_side: int) -> Tuple[int, int]:
    """Return the size of one image after scaling it to this short side."""
    if height <= width:
        return short_side, max(1, int(width * short_side / height))
    return max(1, int(height * short_side / width)), short_side
