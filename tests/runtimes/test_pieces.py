"""Arrays in pieces keep one contract on every framework: shared memory, copies, products, transforms."""

from typing import Any

import numpy as np
import pytest
from tests.runtimes.xla_frameworks import FRAMEWORKS, Need, arrays_of_any

from corewise.runtimes.aligned import ALIGNMENT_BYTES, aligned_empty, is_aligned
from corewise.runtimes.base import Infeasible
from corewise.workloads.kernels.framework_pieces import pieces_of


@pytest.fixture(params=["numpy", "torch", *FRAMEWORKS])
def pieces(request: pytest.FixtureRequest, need: Need) -> Any:
    return pieces_of(arrays_of_any(request.param, need))


def filled(pieces: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A host buffer with random numbers."""
    buffer = pieces.host_buffer(shape, dtype)
    buffer[...] = np.random.standard_normal(shape)
    if buffer.dtype.kind == "c":
        buffer += 1j * np.random.standard_normal(shape)
    return buffer


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_on_the_host_nothing_is_copied(pieces: Any, dtype: str) -> None:
    assert pieces.is_host
    host = filled(pieces, (7 * 33,), dtype)[: 5 * 33].reshape(5, 33)
    there = pieces.upload(host)
    pieces.wait(there)
    assert np.shares_memory(pieces.view(there), host)
    assert np.array_equal(pieces.view(there), host)
    other = np.empty_like(host)
    pieces.download(there, other)
    assert np.array_equal(other, host)


def test_memory_that_begins_anywhere_is_taken_too(pieces: Any) -> None:
    host = aligned_empty((129,), "float64")[1:]
    host[...] = np.arange(128)
    assert not is_aligned(host)
    assert np.array_equal(pieces.view(pieces.upload(host)), np.arange(128))


@pytest.mark.parametrize("shape", [(8, 8, 8), (5, 17, 3)])
def test_a_product_is_added_to_a_sum(pieces: Any, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b, c = (filled(pieces, each, "float64") for each in ((rows, depth), (depth, columns), (rows, columns)))
    wanted = c + a @ b
    # A sum of their own: what is given up must be the framework's.
    total = pieces.multiply_add(pieces.upload(c.copy()), *map(pieces.upload, (a, b)))
    pieces.wait(total)
    assert np.allclose(pieces.view(total), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_transform_goes_along_either_axis(pieces: Any, axis: int) -> None:
    x = filled(pieces, (6, 35), "complex128")
    transform = pieces.fft(pieces.upload(x), axis)
    assert np.allclose(pieces.view(transform), np.fft.fft(x, axis=axis))


def test_aligned_memory_begins_a_cache_line() -> None:
    for length in (1, 3, 1000):
        array = aligned_empty((length, 2), "complex64")
        assert array.shape == (length, 2)
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        assert is_aligned(array)


def test_what_is_lent_is_lent_again_and_never_to_two_at_a_time() -> None:
    pytest.importorskip("torch")
    from corewise.runtimes.torch.pieces import Lent

    made = iter(range(9))
    lent = Lent(lambda: next(made))
    for _ in range(3):
        with lent.one() as first, lent.one() as second:
            assert {first, second} == {0, 1}
    with pytest.raises(ValueError, match="while it was lent"), lent.one() as again:
        raise ValueError("while it was lent")
    assert again in (0, 1)
    with lent.one() as first, lent.one() as second, lent.one() as third:
        assert {first, second, third} == {0, 1, 2}


def test_a_framework_without_pieces_is_refused_with_those_that_have_them() -> None:
    class Other:
        runtime = "abacus"

    with pytest.raises(
        Infeasible, match="abacus has no arrays in pieces; numpy, torch, jax, tensorflow have"
    ):
        pieces_of(Other())
