"""Images on a canvas do not overlap, keep their gap, and fill most of it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.accelerate.batching.canvas_packing import pack_canvas
from corewise.accelerate.batching.collection_sizes import draw_collection_sizes

sides = st.integers(1, 60)


@settings(max_examples=60)
@given(sizes=st.lists(st.tuples(sides, sides), min_size=1, max_size=30), gap=st.integers(0, 4))
def test_images_lie_inside_the_canvas_and_do_not_touch(sizes: list[tuple[int, int]], gap: int) -> None:
    canvas = pack_canvas([size[0] for size in sizes], [size[1] for size in sizes], gap)
    taken = np.zeros((canvas.height + gap, canvas.width + gap), dtype=int)
    for (height, width), (top, left) in zip(sizes, canvas.places, strict=True):
        assert top + height <= canvas.height
        assert left + width <= canvas.width
        taken[top : top + height + gap, left : left + width + gap] += 1
    assert taken.max() == 1


def test_many_images_fill_the_canvas() -> None:
    sizes = draw_collection_sizes(300, mean_megapixels=0.01)
    canvas = pack_canvas(sizes[:, 0].tolist(), sizes[:, 1].tolist())
    assert sizes.prod(axis=1).sum() / canvas.pixels > 0.85
