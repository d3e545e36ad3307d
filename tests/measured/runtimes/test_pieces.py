"""Arrays in pieces keep one contract on every framework: shared memory, copies, products, transforms."""

from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, arrays_of_any

from corewise.measured.runtimes.arrays.aligned_memory import ALIGNMENT_BYTES, allocate_aligned, is_aligned
from corewise.measured.runtimes.base import Infeasible
from corewise.measured.workloads.kernels.framework_pieces import load_pieces


@pytest.fixture(params=["numpy", "torch", *FRAMEWORKS])
def pieces(request: pytest.FixtureRequest, need: Need) -> Any:
    return load_pieces(arrays_of_any(request.param, need))


def filled(pieces: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A host buffer with random numbers."""
    buffer = pieces.allocate_host_buffer(shape, dtype)
    buffer[...] = np.random.standard_normal(shape)
    if buffer.dtype.kind == "c":
        buffer += 1j * np.random.standard_normal(shape)
    return buffer


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_on_the_host_nothing_is_copied(pieces: Any, dtype: str) -> None:
    assert pieces.is_host
    host = filled(pieces, (7 * 33,), dtype)[: 5 * 33].reshape(5, 33)
    there = pieces.move_to_device(host)
    pieces.wait(there)
    assert np.shares_memory(pieces.as_numpy(there), host)
    assert np.array_equal(pieces.as_numpy(there), host)
    other = np.empty_like(host)
    pieces.copy_to_host(there, other)
    assert np.array_equal(other, host)


def test_unaligned_memory_is_accepted(pieces: Any) -> None:
    host = allocate_aligned((129,), "float64")[1:]
    host[...] = np.arange(128)
    assert not is_aligned(host)
    assert np.array_equal(pieces.as_numpy(pieces.move_to_device(host)), np.arange(128))


@pytest.mark.parametrize("shape", [(8, 8, 8), (5, 17, 3)])
def test_a_product_is_added_to_a_sum(pieces: Any, shape: tuple[int, int, int]) -> None:
    rows, depth, columns = shape
    a, b, c = (filled(pieces, each, "float64") for each in ((rows, depth), (depth, columns), (rows, columns)))
    wanted = c + a @ b
    # Copy the sum, because `add_product` invalidates its first argument.
    total = pieces.add_product(pieces.move_to_device(c.copy()), *map(pieces.move_to_device, (a, b)))
    pieces.wait(total)
    assert np.allclose(pieces.as_numpy(total), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_transform_works_along_either_axis(pieces: Any, axis: int) -> None:
    x = filled(pieces, (6, 35), "complex128")
    transform = pieces.compute_fft(pieces.move_to_device(x), axis)
    assert np.allclose(pieces.as_numpy(transform), np.fft.fft(x, axis=axis))


def test_aligned_memory_begins_a_cache_line() -> None:
    for length in (1, 3, 1000):
        array = allocate_aligned((length, 2), "complex64")
        assert array.shape == (length, 2)
        assert array.ctypes.data % ALIGNMENT_BYTES == 0
        assert is_aligned(array)


def test_a_pool_reuses_objects_and_never_shares_one() -> None:
    pytest.importorskip("torch")
    from corewise.measured.runtimes.torch.pieces import ObjectPool

    numbers = iter(range(9))
    lent = ObjectPool(lambda: next(numbers))
    for _ in range(3):
        with lent.take() as first, lent.take() as second:
            assert {first, second} == {0, 1}
    with pytest.raises(ValueError, match="while it was lent"), lent.take() as again:
        raise ValueError("while it was lent")
    assert again in (0, 1)
    with lent.take() as first, lent.take() as second, lent.take() as third:
        assert {first, second, third} == {0, 1, 2}


def test_a_framework_without_pieces_is_refused_with_those_that_have_them() -> None:
    class Other:
        runtime = "abacus"

    with pytest.raises(Infeasible, match="abacus cannot process arrays in pieces; use numpy, torch, jax, tensorflow"):
        load_pieces(Other())
