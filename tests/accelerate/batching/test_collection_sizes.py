"""The drawn collection has the statistics that the paper publishes."""

import numpy as np
import pytest

from corewise.accelerate.batching.collection_sizes import draw_collection_sizes, scale_short_side
from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.shape_batch_sampler import ShapeBatchSampler


def compute_megapixels(sizes: np.ndarray, batch: int) -> tuple[float, float]:
    """Return the mean informative and computed megapixels of random batches."""
    figures = ShapeBatchSampler(sizes, policy="random", batch_size=batch).compute_figures()
    return figures.informative_pixels / figures.num_batches / 1e6, figures.mean_pixels / 1e6


def test_the_published_megapixels_of_a_batch_are_reproduced() -> None:
    sizes = draw_collection_sizes(37_407, seed=1)
    assert sizes.prod(axis=1).mean() / 1e6 == pytest.approx(6.6, rel=0.02)
    informative, computed = compute_megapixels(scale_short_side(sizes), 32)
    assert informative == pytest.approx(11.5, rel=0.03)
    assert computed == pytest.approx(46.8, rel=0.05)
    _, computed = compute_megapixels(sizes, 4)
    assert computed == pytest.approx(61.5, rel=0.15)


def test_a_smaller_collection_is_the_beginning_of_a_larger_one() -> None:
    assert np.array_equal(draw_collection_sizes(10, 5), draw_collection_sizes(100, 5)[:10])
    assert not np.array_equal(draw_collection_sizes(10, 5), draw_collection_sizes(10, 6))


def test_a_smaller_mean_keeps_the_ratios() -> None:
    large, small = draw_collection_sizes(50), draw_collection_sizes(50, mean_megapixels=0.66)
    assert small[:, 0] / small[:, 1] == pytest.approx(large[:, 0] / large[:, 1], rel=0.02)


def test_the_short_side_is_scaled() -> None:
    assert scale_short_side(np.array([[1000, 2000], [3000, 1000]])).tolist() == [[500, 1000], [1500, 500]]


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(BatchingError):
        draw_collection_sizes(-1)
