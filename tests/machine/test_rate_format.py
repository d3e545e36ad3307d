"""The number format whose flop rate bounds a trial."""

from typing import Any

import pytest

from corewise.machine.ceilings.rate_format import find_compute_format, find_rate_format

ON_GPU = {"dtype": "float32", "device": "cuda"}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"workload": "gemm", "dtype": "float32"}, "float32"),
        ({"workload": "gemm", "dtype": "float32", "float32_precision": "bf16"}, "bfloat16"),
        ({"workload": "gemm", "float32_precision": "tf32", **ON_GPU}, "tf32"),
        ({"workload": "resnet50", **ON_GPU}, "tf32"),
        ({"workload": "resnet50", "dtype": "float32"}, "float32"),
        ({"workload": "convolution", "runtime": "torch", **ON_GPU}, "tf32"),
        ({"workload": "convolution", "runtime": "jax", **ON_GPU}, "float32"),
        ({"workload": "convolution", "runtime": "tensorflow", **ON_GPU}, "float32"),
        ({"workload": "gemm", **ON_GPU}, "float32"),
        ({"workload": "gemm", "dtype": "int8"}, "int8"),
        ({"workload": "my.py:make", **ON_GPU}, "float32"),
        ({"workload": "of-another-package", **ON_GPU}, "float32"),
        ({}, "float32"),
    ],
)
def test_the_format_whose_rate_bounds_a_trial(params: dict[str, Any], expected: str) -> None:
    assert find_rate_format(params) == expected


def test_only_a_convolution_in_float32_on_a_gpu_is_shortened_unasked() -> None:
    assert find_compute_format("float32", ON_GPU, convolves=True) == "tf32"
    assert find_compute_format("float32", ON_GPU, convolves=False) == "float32"
    assert find_compute_format("float32", {**ON_GPU, "device": "cpu"}, convolves=True) == "float32"
    assert find_compute_format("float64", ON_GPU, convolves=True) == "float64"
