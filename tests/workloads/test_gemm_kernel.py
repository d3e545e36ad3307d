"""The product's counts, shapes and check."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corewise.runtimes.numpy.arrays import NumpyArrays
from corewise.workloads.kernels.base import Setup
from corewise.workloads.kernels.gemm import GEMM


def test_a_shape_is_a_size_or_what_stands_in_for_it() -> None:
    assert GEMM.work("infer", {"size": 10}).flops_per_sample == 2000
    assert GEMM.work("infer", {"size": 10, "k": 3}).flops_per_sample == 2 * 10 * 10 * 3
    assert GEMM.work("infer", {"m": 2, "n": 3, "k": 5}, "float64").bytes_per_sample == 8 * (10 + 15 + 6)
    assert GEMM.work("infer", {"m": 2, "n": 3, "k": 5}, "int8").bytes_per_sample == 10 + 15 + 4 * 6


@pytest.mark.parametrize("args", [{"size": 0}, {"m": 0}, {"n": 2.5}, {"k": True}, {"size": "large"}])
def test_a_size_that_is_no_whole_number_is_refused(args: dict[str, Any]) -> None:
    [name] = args
    with pytest.raises(ValueError, match=f"gemm: {name} must be a whole number of at least 1"):
        GEMM.work("infer", args)


def test_the_largest_that_fits_keeps_the_proportions() -> None:
    asked = {"size": 2048, "m": 10_000, "n": 20_000, "k": 40_000}
    fitting = GEMM.largest_that_fits(asked, "float64", GEMM.needed_bytes(asked, "float64") // 4)
    assert (fitting["m"], fitting["n"], fitting["k"]) == (5_000, 10_000, 20_000)
    assert GEMM.largest_that_fits({"size": 100}, "float64", 10) == {"size": 100}


class Spoilt(NumpyArrays):
    """NumPy whose product is changed afterwards."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        product = np.matmul(a, b)
        self.change(product)
        return product


def one_element(product: Any) -> None:
    product[3, 5] += 0.01


def one_column(product: Any) -> None:
    product[:, -1] = 0


def fewer_digits(product: Any) -> None:
    product[:] = product.astype(np.float16)


@pytest.mark.parametrize("change", [one_element, one_column, fewer_digits])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_wrong_product_fails_the_check(change: Any, dtype: str, tmp_path: Path) -> None:
    args = {"m": 40, "n": 60, "k": 50}
    setup = Setup(Spoilt(change), dtype, args, 0, str(tmp_path), 1)
    assert not GEMM.build(setup).check().passed


def test_short_products_of_float32_are_allowed_where_they_were_asked_for(tmp_path: Path) -> None:
    def to_tf32(product: Any) -> None:
        product[:] = (product.view(np.int32) & ~np.int32(2**13 - 1)).view(np.float32)

    for precision, passes in (("default", False), ("tf32", True)):
        setup = Setup(Spoilt(to_tf32), "float32", {"size": 50}, 0, str(tmp_path), 1, precision)
        assert GEMM.build(setup).check().passed is passes


def test_the_check_reads_large_matrices_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corewise.workloads.kernels.gemm.BLOCK_BYTES", 8 * 33 * 7)
    args = {"m": 40, "n": 33, "k": 21}
    assert GEMM.build(Setup(NumpyArrays(), "float64", args, 0, str(tmp_path), 1)).check().passed
    assert not GEMM.build(Setup(Spoilt(one_element), "float64", args, 0, str(tmp_path), 1)).check().passed
