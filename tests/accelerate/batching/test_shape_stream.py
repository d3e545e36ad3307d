"""Streams: every sample once, within the limits, and none waits for ever."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.accelerate.batching.collection_sizes import draw_collection_sizes
from corewise.accelerate.batching.errors import BatchingError
from corewise.accelerate.batching.shape_stream import ShapeBatchStream

Sample = tuple[int, int, int]
sides = st.integers(1, 100)


def make(samples: list[Sample], **options: int | str) -> ShapeBatchStream[Sample]:
    return ShapeBatchStream(samples, lambda sample: sample[1:], **options)  # type: ignore[arg-type]


def number(sizes: list[tuple[int, int]]) -> list[Sample]:
    return [(i, height, width) for i, (height, width) in enumerate(sizes)]


@settings(max_examples=60)
@given(sizes=st.lists(st.tuples(sides, sides), max_size=60), batch=st.integers(1, 8), buffer=st.integers(1, 20))
def test_every_sample_appears_once_and_the_oldest_first(sizes: list[tuple[int, int]], batch: int, buffer: int) -> None:
    batches = list(make(number(sizes), batch_size=batch, max_pixels=20_000, buffer_size=buffer))
    assert sorted(sample[0] for samples in batches for sample in samples) == list(range(len(sizes)))
    for samples in batches:
        assert len(samples) <= batch
        padded = max(s[1] for s in samples) * max(s[2] for s in samples) * len(samples)
        assert padded <= 20_000 or len(samples) == 1
    left = set(range(len(sizes)))
    for samples in batches:
        assert samples[0][0] == min(left)
        left -= {sample[0] for sample in samples}


def test_a_larger_buffer_pads_less_and_the_stream_is_read_no_further_than_it() -> None:
    sizes = draw_collection_sizes(600).tolist()
    taken: list[int] = []

    def read() -> Iterator[Sample]:
        for sample in number(sizes):
            taken.append(sample[0])
            yield sample

    def compute_padded(buffer: int) -> int:
        batches = list(make(number(sizes), batch_size=4, buffer_size=buffer))
        return sum(max(s[1] for s in b) * max(s[2] for s in b) * len(b) for b in batches)

    assert compute_padded(200) < 0.8 * compute_padded(4)
    next(iter(ShapeBatchStream(read(), lambda sample: sample[1:], batch_size=4, buffer_size=50)))
    assert len(taken) == 50


def test_a_wrong_size_names_the_sample() -> None:
    with pytest.raises(BatchingError, match=r"sample 1 of the stream: .* 0×5"):
        list(make(number([(5, 5), (0, 5)]), batch_size=2))


def test_a_sample_above_the_budget_is_refused_if_asked() -> None:
    with pytest.raises(BatchingError, match="sample 0 of the stream has 50×50"):
        list(make(number([(50, 50)]), max_pixels=100, oversized="refuse"))
