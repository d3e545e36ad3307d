"""The product's counts, shapes and check."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corewise.measured.runtimes.numpy.arrays import NumpyArrays
from corewise.measured.workloads.kernels.gemm import GEMM
from corewise.measured.workloads.kernels.kernel import KernelSetup


def test_a_shape_is_a_size_or_m_n_and_k() -> None:
    assert GEMM.count_work("infer", {"size": 10}).flops_per_sample == 2000
    assert GEMM.count_work("infer", {"size": 10, "k": 3}).flops_per_sample == 2 * 10 * 10 * 3
    assert GEMM.count_work("infer", {"m": 2, "n": 3, "k": 5}, "float64").bytes_per_sample == 8 * (10 + 15 + 6)
    assert GEMM.count_work("infer", {"m": 2, "n": 3, "k": 5}, "int8").bytes_per_sample == 10 + 15 + 4 * 6


@pytest.mark.parametrize("args", [{"size": 0}, {"m": 0}, {"n": 2.5}, {"k": True}, {"size": "large"}])
def test_a_size_that_is_no_whole_number_is_refused(args: dict[str, Any]) -> None:
    [name] = args
    with pytest.raises(ValueError, match=f"gemm: {name} must be a whole number of at least 1"):
        GEMM.count_work("infer", args)


def test_the_largest_that_fits_keeps_the_proportions() -> None:
    asked = {"size": 2048, "m": 10_000, "n": 20_000, "k": 40_000}
    fitting = GEMM.fit_to_memory(asked, "float64", GEMM.estimate_memory_bytes(asked, "float64") // 4)
    assert (fitting["m"], fitting["n"], fitting["k"]) == (5_000, 10_000, 20_000)
    assert GEMM.fit_to_memory({"size": 100}, "float64", 10) == {"size": 100}


@pytest.mark.parametrize(
    ("args", "free_bytes", "offered"),
    [
        # Size 1 needs 8·(2·10⁹ + 1) bytes.
        ({"size": 10, "m": 10**9}, 3 * 10**10, {"size": 1}),
        # Even size 1 does not fit, so m is reduced.
        ({"size": 10, "m": 10**9}, 10**9, {"m": 6_249_995}),
        ({"size": 10**6, "k": 100}, 10**9, {"size": 11_080}),
        ({"size": 7, "m": 10**6, "n": 10**6}, 10**10, {"m": 35_348, "n": 35_348}),
    ],
)
def test_only_sizes_that_must_shrink_do(args: dict[str, Any], free_bytes: int, offered: dict[str, int]) -> None:
    fitting = GEMM.fit_to_memory(args, "float64", free_bytes)
    assert fitting == {**args, **offered}
    assert GEMM.estimate_memory_bytes(fitting, "float64") <= free_bytes


class WrongArrays(NumpyArrays):
    """NumPy whose product is changed afterwards."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        product = np.matmul(a, b)
        self.change(product)
        return product


def change_element(product: Any) -> None:
    product[3, 5] += 0.01


def change_column(product: Any) -> None:
    product[:, -1] = 0


def drop_digits(product: Any) -> None:
    product[:] = product.astype(np.float16)


@pytest.mark.parametrize("change", [change_element, change_column, drop_digits])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_wrong_product_fails_the_check(change: Any, dtype: str, tmp_path: Path) -> None:
    args = {"m": 40, "n": 60, "k": 50}
    setup = KernelSetup(WrongArrays(change), dtype, args, 0, str(tmp_path), 1)
    assert not GEMM.build(setup).check().passed


def test_short_products_of_float32_are_allowed_where_they_were_asked_for(tmp_path: Path) -> None:
    def to_tf32(product: Any) -> None:
        product[:] = (product.view(np.int32) & ~np.int32(2**13 - 1)).view(np.float32)

    for precision, passes in (("default", False), ("tf32", True)):
        setup = KernelSetup(WrongArrays(to_tf32), "float32", {"size": 50}, 0, str(tmp_path), 1, precision)
        assert GEMM.build(setup).check().passed is passes


def test_the_check_reads_large_matrices_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corewise.measured.workloads.kernels.gemm.BLOCK_BYTES", 8 * 33 * 7)
    args = {"m": 40, "n": 33, "k": 21}
    assert GEMM.build(KernelSetup(NumpyArrays(), "float64", args, 0, str(tmp_path), 1)).check().passed
    assert not GEMM.build(KernelSetup(WrongArrays(change_element), "float64", args, 0, str(tmp_path), 1)).check().passed


class WrongDeviceArrays(WrongArrays):
    """Arrays of a device that is not the host: several threads read them back."""

    device = "cuda"


@pytest.mark.parametrize(("change", "passes"), [(lambda product: None, True), (change_element, False)])
def test_a_product_that_comes_back_from_a_device_is_checked_whole(
    change: Any, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corewise.measured.workloads.kernels.gemm.BLOCK_BYTES", 8 * 33 * 7)
    setup = KernelSetup(WrongDeviceArrays(change), "float64", {"m": 40, "n": 33, "k": 210}, 0, str(tmp_path), 1)
    assert GEMM.build(setup).check().passed is passes


class Bfloat16Arrays(NumpyArrays):
    """NumPy whose numbers are rounded to bfloat16, with something done to the product."""

    def __init__(self, change: Any = None) -> None:
        super().__init__()
        self.change = change

    def draw_normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        return round_to_bfloat16(super().draw_normal(shape, "float32", seed))

    def create_zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return super().create_zeros(shape, "float32")

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        product = round_to_bfloat16(np.matmul(a, b))
        if self.change is not None:
            self.change(product)
        return product


def round_to_bfloat16(array: Any) -> Any:
    """Rounded to 8 bits, half away from zero."""
    return ((array.view(np.uint32) + 2**15) & np.uint32(2**32 - 2**16)).view(np.float32)


def set_zero_in_every_row(product: Any) -> None:
    columns = np.random.default_rng(0).integers(0, product.shape[1], product.shape[0])
    product[np.arange(product.shape[0]), columns] = 0


def set_zero_in_last_row(product: Any) -> None:
    product[-1, np.argmax(np.abs(product[-1]))] = 0


@pytest.mark.parametrize("change", [set_zero_in_every_row, set_zero_in_last_row])
def test_a_zero_in_a_long_row_of_short_numbers_fails_the_check(change: Any, tmp_path: Path) -> None:
    args = {"m": 64, "n": 2048, "k": 256}
    assert GEMM.build(KernelSetup(Bfloat16Arrays(), "bfloat16", args, 0, str(tmp_path), 1)).check().passed
    assert not GEMM.build(KernelSetup(Bfloat16Arrays(change), "bfloat16", args, 0, str(tmp_path), 1)).check().passed


def test_rows_of_zeros_are_right_when_their_product_is_zero(tmp_path: Path) -> None:
    class WithZeros(NumpyArrays):
        def draw_normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
            array = super().draw_normal(shape, dtype, seed)
            array[0] = 0
            return array

    # All of B is zero.
    args = {"m": 5, "n": 3, "k": 1}
    check = GEMM.build(KernelSetup(WithZeros(), "float64", args, 0, str(tmp_path), 1)).check()
    assert (check.error, check.passed) == (0.0, True)
