"""Kernels and primitives need no more memory than estimated; each runs in a separate process."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.measured.runtimes.conftest import DEFAULTS

from corewise.measured.runtimes.base import MissingPart
from corewise.measured.runtimes.registry import find_runtime

MOST_OVER = 1.25
SCRIPT = Path(__file__).with_name("measure_kernel_peaks.py")
KERNELS = {
    "stream": ("float64", {"operation": "triad", "size_bytes": 2**26}, {"size_bytes": 2**20}),
    "gemm": ("float64", {"size": 2048}, {"size": 128}),
    "fft": ("complex128", {"size": 2**22}, {"size": 2**12}),
    "fft by tiles": ("complex128", {"size": 2**22, "method": "tiles"}, {"size": 2**12}),
    "fft in pieces": (
        "complex128",
        {"size": 2**22, "method": "tiles", "signal": "host", "memory_bytes": 2**25},
        {"size": 2**12},
    ),
    "cg": ("float64", {"size": 2048, "iterations": 3}, {"size": 64}),
    "cg csr": ("float64", {"matrix": "csr", "size": 56, "iterations": 3}, {"size": 6}),
    "cg matrix-free": ("float64", {"matrix": "matrix-free", "size": 128, "iterations": 3}, {"size": 6}),
    "distributed_cg": ("float64", {"size": 2048, "iterations": 3}, {"size": 64}),
    "distributed_fft": ("complex128", {"size": 2**22}, {"size": 2**12}),
    "distributed_product": ("float32", {"size": 4096, "tile": 1024}, {"size": 64, "tile": 16}),
    "convolution": ("bfloat16", {"problem": "mb8ic64ih128oc64kh3ph1"}, {"problem": "mb1ic4ih8oc4kh3ph1"}),
    "matrix_product": ("float32", {"problem": "8x4096:4096x4096"}, {"problem": "2x2:2x2"}),
    "matrix_product of a batch": ("bfloat16", {"problem": "128x8x512:128x512x512"}, {"problem": "2x2x2:2x2x2"}),
}
# Host memory that no device has to hold.
ON_HOST_BYTES = {"fft in pieces": 2 * 2**22 * 16}
# Starting a framework takes seconds, so each runs only the kernels that need the most memory.
CHOSEN = [
    *((kernel, "numpy") for kernel in ("stream", "fft", "cg", "cg matrix-free")),
    *((kernel, "numpy") for kernel in ("distributed_cg", "distributed_fft", "distributed_product")),
    ("gemm", "torch"),
    *((kernel, "torch") for kernel in ("convolution", "matrix_product", "matrix_product of a batch")),
    *(("convolution", runtime) for runtime in ("jax", "tensorflow")),
    ("fft by tiles", "jax"),
    ("fft in pieces", "jax"),
    ("stream", "tensorflow"),
    ("cg csr", "tensorflow"),
]


@cache
def peaks_of(runtime: str) -> "subprocess.CompletedProcess[str]":
    """Run the script for all kernels chosen for a runtime."""
    cases = []
    for kernel in (kernel for kernel, its_runtime in CHOSEN if its_runtime == runtime):
        dtype, size, small = KERNELS[kernel]
        common = {**DEFAULTS, "workload": kernel.split(" ")[0], "dtype": dtype}
        cases.append([kernel, {**common, **args_of(size)}, args_of(small)])
    command = [sys.executable, str(SCRIPT), runtime, json.dumps(cases)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def args_of(values: dict[str, Any]) -> dict[str, Any]:
    return {f"args.{name}": value for name, value in values.items()}


@pytest.mark.parametrize(("kernel", "runtime"), CHOSEN)
def test_a_kernel_takes_no_more_than_it_announces(kernel: str, runtime: str, need: Callable[[bool, str], None]) -> None:
    try:
        find_runtime(runtime).read_versions()
    except (MissingPart, ImportError) as problem:
        need(False, str(problem))
    done = peaks_of(runtime)
    if "does not reset peaks" in done.stderr:
        pytest.skip(done.stderr.strip())
    peaks = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    assert kernel in peaks, done.stderr
    peak = peaks[kernel]
    assert peak["taken"] - ON_HOST_BYTES.get(kernel, 0) <= MOST_OVER * peak["announced"], peak
