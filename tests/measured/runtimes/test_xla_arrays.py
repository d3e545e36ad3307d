"""The arrays of jax and tensorflow against numpy's, on the same numbers."""

from typing import Any

import numpy as np
import pytest
from tests.measured.runtimes.xla_frameworks import FRAMEWORKS, Need, make_arrays, need_framework

ROUNDOFF = {"float64": 1e-15, "float32": 1e-6, "complex128": 1e-15, "complex64": 1e-6, "bfloat16": 1e-2}


@pytest.fixture(params=FRAMEWORKS)
def arrays(request: pytest.FixtureRequest, need: Need) -> Any:
    need_framework(need, request.param)
    return make_arrays(request.param)


def fresh(shape: tuple[int, ...], dtype: str = "float64") -> Any:
    drawn = np.random.standard_normal(shape)
    return (drawn + 1j * np.random.standard_normal(shape)).astype(dtype) if "complex" in dtype else drawn.astype(dtype)


def assert_close(got: Any, wanted: Any, dtype: str = "float64", size: int = 1) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=8 * ROUNDOFF[dtype] * max(size, 1) * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
def test_copies_to_the_device_and_back_preserve_values(arrays: Any, dtype: str) -> None:
    there = np.arange(-60, 60).reshape(3, 40).astype(dtype)
    moved = arrays.from_host(there)
    there_before = there.copy()
    there[:] = 0
    back = arrays.to_host(moved)
    assert back.dtype == np.dtype(dtype)
    assert np.array_equal(back, there_before)


def test_float64_keeps_all_its_digits(arrays: Any) -> None:
    smallest = np.array([1 + 2.0**-52, 1e300])
    doubled = arrays.to_host(arrays.scale(2.0, arrays.from_host(smallest)))
    assert doubled.dtype == np.float64
    assert np.array_equal(doubled, 2 * smallest)


def test_an_operand_that_is_read_twice_may_be_given_as_out(arrays: Any) -> None:
    a = fresh((100,))
    there = arrays.from_host(a)
    assert_close(arrays.to_host(arrays.add(there, there, out=there)), 2 * a)


@pytest.mark.parametrize("size", [1, 1000, 2**16, 2**16 + 1])
def test_a_dot_product_is_right_for_any_length_and_stays_on_the_device(arrays: Any, size: int) -> None:
    a, b = fresh((size,)), fresh((size,))
    got = arrays.compute_dot(arrays.from_host(a), arrays.from_host(b))
    assert got.shape == ()
    assert abs(float(arrays.to_host(got)) - a @ b) <= 1e-14 * (np.abs(a) @ np.abs(b))


def test_a_long_sum_of_scaled_arrays_is_compiled_and_right(arrays: Any) -> None:
    a, b = fresh((2**19,)), fresh((2**19,))
    assert_close(arrays.to_host(arrays.add_scaled(arrays.from_host(a), -0.3, arrays.from_host(b))), a - 0.3 * b)


def test_a_factor_may_be_a_number_of_the_device_or_of_numpy(arrays: Any) -> None:
    a, b = fresh((50,), "float32"), fresh((50,), "float32")
    there = [arrays.from_host(a), arrays.from_host(b)]
    for factor in (arrays.from_host(np.array(1.7)), np.float64(1.7), 1.7):
        got = arrays.to_host(arrays.add_scaled(there[0], factor, there[1]))
        assert got.dtype == np.float32
        assert_close(got, a + np.float32(1.7) * b, "float32", size=4)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 70)])
def test_products_of_matrices_and_vectors_are_right(arrays: Any, dtype: str, size: int) -> None:
    a, b = arrays.draw_normal((size, size), dtype, 1), arrays.draw_normal((size, size), dtype, 2)
    x = arrays.draw_normal((size,), dtype, 3)
    host = [arrays.to_host(each).astype(np.float64) for each in (a, b, x)]
    assert_close(arrays.to_host(arrays.matmul(a, b)).astype(np.float64), host[0] @ host[1], dtype, 4)
    assert_close(arrays.to_host(arrays.matmul(a, x)).astype(np.float64), host[0] @ host[2], dtype, 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64"])
def test_random_numbers_are_spread_as_asked_and_depend_on_the_seed(arrays: Any, dtype: str) -> None:
    one, same, other = (arrays.to_host(arrays.draw_normal((200, 100), dtype, seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert 0.9 < np.std(one.real) < 1.1
    assert abs(np.mean(one)) < 0.1


def test_random_numbers_are_made_in_pieces_that_differ(monkeypatch: pytest.MonkeyPatch, need: Need) -> None:
    need_framework(need, "jax")
    import jax

    from corewise.measured.runtimes.jax import arrays as module

    monkeypatch.setattr(module, "PIECE_ELEMENTS", 64)
    # A GPU draws numbers this way.
    drawn = np.array(module._draw_normal(jax.random.key(7), (10, 19), "float32")).reshape(-1)
    assert len(np.unique(drawn)) == 190
    assert np.all(drawn != 0)


def test_a_compiled_function_gives_what_the_function_gives(arrays: Any) -> None:
    a, b = fresh((100,)), fresh((100,))

    def function(x: Any, y: Any, factor: float, spare: Any) -> Any:
        z = arrays.add_scaled(x, factor, y, out=spare)
        return z, arrays.compute_dot(z, z)

    compiled = arrays.compile(function)
    there = [arrays.from_host(a), arrays.from_host(b)]
    z = arrays.create_zeros((100,), "float64")
    # Numbers may change between calls.
    for factor in (0.5, 0.25, 0.75):
        z, squared = compiled(*there, factor, z)
        arrays.finish(z)
        assert_close(arrays.to_host(z), a + factor * b)
        assert float(arrays.to_host(squared)) == pytest.approx((a + factor * b) @ (a + factor * b))


def test_a_compiled_function_may_be_given_one_array_twice(arrays: Any) -> None:
    compiled = arrays.compile(lambda a, b, out: arrays.add(a, b, out=out))
    a = fresh((10,))
    there = arrays.from_host(a)
    assert_close(arrays.to_host(compiled(there, there, arrays.create_zeros((10,), "float64"))), 2 * a)
    assert_close(arrays.to_host(compiled(there, there, there)), 2 * a)


def test_compiled_functions_may_call_one_another(arrays: Any) -> None:
    inner = arrays.compile(lambda a, out: arrays.scale(2.0, a, out=out))
    outer = arrays.compile(lambda a, out: arrays.add(a, inner(a, out)))
    a = fresh((10,))
    assert_close(arrays.to_host(outer(arrays.from_host(a), arrays.create_zeros((10,), "float64"))), 3 * a)


def test_free_memory_is_reported(arrays: Any) -> None:
    with open("/proc/meminfo", encoding="ascii") as file:
        total = 1024 * int(file.readline().split()[1])
    assert 2**20 < arrays.free_bytes() <= total
    arrays.finish()


def test_jax_reuses_the_memory_of_out_and_leaves_numpy_arrays_unchanged(need: Need) -> None:
    need_framework(need, "jax")
    arrays = make_arrays("jax")
    host = fresh((1000,))
    a, out = arrays.from_host(host), arrays.create_zeros((1000,), "float64")
    where = out.unsafe_buffer_pointer()
    for operation in (
        lambda c: arrays.copy(a, out=c),
        lambda c: arrays.add_scaled(a, 3.0, a, out=c),
        arrays.compile(lambda c: arrays.add(a, a, out=c)),
    ):
        given, out = out, operation(out)
        assert out.unsafe_buffer_pointer() == where
        assert given.is_deleted()
    assert_close(arrays.to_host(out), 2 * host)


def test_tensorflow_copies_host_arrays(need: Need) -> None:
    need_framework(need, "tensorflow")
    arrays = make_arrays("tensorflow")
    a = arrays.from_host(fresh((1000,)))
    copied = arrays.copy(a)
    places = [each.__array_interface__["data"][0] for each in (a.numpy(), copied.numpy())]
    assert places[0] != places[1]
