"""The contract of arrays with kernels; each framework tests it with one class of two lines."""

from typing import Any

import numpy as np
import pytest

from corewise.measured.runtimes.base import Infeasible

TOLERANCE = {"float64": 1e-12, "float32": 1e-4}


class ArraysContract:
    """Tests of arrays. A subclass defines `make`, which returns the arrays or skips."""

    def make(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def arrays(self) -> Any:
        return self.make()

    def test_they_describe_themselves(self, arrays: Any) -> None:
        assert arrays.runtime in ("numpy", "torch", "jax", "tensorflow")
        assert arrays.device in ("cpu", "cuda")
        assert {"float64", "float32"} <= set(arrays.dtypes)
        assert arrays.free_bytes() > 0

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_random_numbers_are_normal_and_follow_from_the_seed(self, arrays: Any, dtype: str) -> None:
        first = arrays.to_host(arrays.draw_normal((200, 500), dtype, 1))
        assert (first.shape, first.dtype) == ((200, 500), np.dtype(dtype))
        assert max(abs(first.mean()), abs(first.std() - 1)) < 0.02
        assert np.array_equal(first, arrays.to_host(arrays.draw_normal((200, 500), dtype, 1)))
        assert not np.array_equal(first, arrays.to_host(arrays.draw_normal((200, 500), dtype, 2)))

    def test_random_integers_lie_between_127s(self, arrays: Any) -> None:
        if "int8" not in arrays.dtypes:
            pytest.skip("no int8")
        numbers = arrays.to_host(arrays.draw_normal((100_000,), "int8", 3))
        assert numbers.dtype == np.int8
        assert (numbers.min(), numbers.max()) == (-127, 127)

    @pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
    def test_copies_to_the_device_and_back_preserve_values(self, arrays: Any, dtype: str) -> None:
        if dtype not in arrays.dtypes:
            pytest.skip(f"no {dtype}")
        sent = np.arange(12).reshape(3, 4).astype(dtype)
        back = arrays.to_host(arrays.from_host(sent))
        assert back.dtype == sent.dtype
        assert np.array_equal(back, sent)
        assert not np.any(arrays.to_host(arrays.create_zeros((3, 4), dtype)))
        assert tuple(arrays.create_empty((3, 4), dtype).shape) == (3, 4)

    @pytest.mark.parametrize("with_out", [False, True])
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("shape", [(1,), (100_003,), (7, 9)])
    def test_elementwise_operations_are_right(
        self, arrays: Any, dtype: str, shape: tuple[int, ...], with_out: bool
    ) -> None:
        a, b = arrays.draw_normal(shape, dtype, 1), arrays.draw_normal(shape, dtype, 2)
        x, y = arrays.to_host(a), arrays.to_host(b)

        def out() -> Any:
            return arrays.create_zeros(shape, dtype) if with_out else None

        for found, wanted in (
            (arrays.copy(a, out=out()), x),
            (arrays.scale(3.0, a, out=out()), 3 * x),
            (arrays.add(a, b, out=out()), x + y),
            (arrays.multiply(a, b, out=out()), x * y),
            (arrays.add_scaled(a, 0.5, b, out=out()), x + 0.5 * y),
        ):
            assert np.allclose(arrays.to_host(found), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert np.array_equal(arrays.to_host(a), x)

    def test_a_sum_may_be_written_over_either_of_its_parts(self, arrays: Any) -> None:
        for target in ("a", "b"):
            a, b = arrays.draw_normal((50_001,), "float64", 1), arrays.draw_normal((50_001,), "float64", 2)
            wanted = arrays.to_host(a) - 2.0 * arrays.to_host(b)
            found = arrays.add_scaled(a, -2.0, b, out=a if target == "a" else b)
            assert np.allclose(arrays.to_host(found), wanted)
            if arrays.writes_in_place:
                assert found is (a if target == "a" else b)

    def test_a_number_that_lies_on_the_device_is_a_factor_too(self, arrays: Any) -> None:
        a, b = arrays.draw_normal((1000,), "float64", 1), arrays.draw_normal((1000,), "float64", 2)
        x, y = arrays.to_host(a), arrays.to_host(b)
        factor = arrays.compute_dot(a, b)
        assert np.isclose(float(arrays.to_host(factor)), x @ y)
        assert np.allclose(arrays.to_host(arrays.add_scaled(a, factor, b)), x + (x @ y) * y)
        assert np.allclose(arrays.to_host(arrays.scale(factor, a)), (x @ y) * x)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_products_of_matrices_and_vectors_are_right(self, arrays: Any, dtype: str) -> None:
        a, b, v = (arrays.draw_normal(shape, dtype, 1) for shape in ((33, 65), (65, 17), (65,)))
        x, y, w = (arrays.to_host(each).astype(np.float64) for each in (a, b, v))
        product = arrays.matmul(a, b, out=arrays.create_zeros((33, 17), dtype))
        assert np.allclose(arrays.to_host(product), x @ y, rtol=1e-4, atol=1e-4)
        assert np.allclose(arrays.to_host(arrays.matmul(a, v)), x @ w, rtol=1e-4, atol=1e-4)

    def test_products_of_int8_are_exact_or_refused(self, arrays: Any) -> None:
        if "int8" not in arrays.dtypes:
            pytest.skip("no int8")
        a, b = arrays.draw_normal((64, 128), "int8", 1), arrays.draw_normal((128, 32), "int8", 2)
        try:
            product = arrays.to_host(arrays.matmul(a, b))
        except Infeasible as reason:
            pytest.skip(str(reason))
        wanted = arrays.to_host(a).astype(np.int64) @ arrays.to_host(b).astype(np.int64)
        assert np.array_equal(product, wanted)

    @pytest.mark.parametrize("length", [1, 97, 1024])
    def test_transforms_are_right(self, arrays: Any, length: int) -> None:
        x = np.random.default_rng(length).standard_normal(length) + 1j
        found = arrays.to_host(arrays.compute_fft(arrays.from_host(x)))
        assert np.allclose(found, np.fft.fft(x))

    def test_a_compiled_function_gives_the_same_again_and_again(self, arrays: Any) -> None:
        a, b, out = (arrays.draw_normal((1000,), "float64", seed) for seed in (1, 2, 3))
        wanted = arrays.to_host(a) + 2 * arrays.to_host(b)
        function = arrays.compile(lambda a, b, out: arrays.add_scaled(a, 2.0, b, out=out))
        for _ in range(4):
            out = function(a, b, out)
            arrays.finish(out)
            assert np.allclose(arrays.to_host(out), wanted)

    def test_an_unknown_number_format_is_refused_with_the_known(self, arrays: Any) -> None:
        with pytest.raises(Infeasible, match=r"float7.*float64"):
            arrays.create_zeros((2,), "float7")
