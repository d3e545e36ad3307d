"""Reference values of the discrete Fourier transform, computed by its definition.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Mapping

import numpy as np

from corewise.measured.runtimes.base import Check
from corewise.measured.workloads.kernels.fft.roots_of_unity import compute_roots_of_unity
from corewise.measured.workloads.kernels.host_blocks import map_blocks

UNIT_ROUNDOFF = {"complex128": 2.0**-53, "complex64": 2.0**-24}
SAFETY = 4.0
# The reference sums in complex128, whatever dtype is checked.
REFERENCE_ROUNDOFF = 2.0**-53
# Values copied to the host at a time.
HOST_BLOCK = 2**22
# Number of checked frequencies, and of checked samples.
NUM_CHECKED = 4
# Number of values that determine the scale of the signal.
NUM_SCALED = 2**16

# Multiplies values, reshaped to rows of this length, with a matrix; the product is in host memory.
Product = Callable[[Any, int, Any], Any]


def sum_by_definition(signal: Any, size: int, frequencies: Any, multiply: Product) -> Any:
    """Return Σ x[n]·e^(-2πi·n·k/size) for each frequency k; negative k give the unscaled inverse transform.

    Rows of about √size values are multiplied with their roots in complex128. The sums of rows are added in
    long double.
    """
    length = max(1, math.isqrt(size))
    num_rows = size // length
    k = np.asarray(frequencies, dtype=np.int64) % size
    within = compute_roots_of_unity(compute_multiples(np.arange(length)[:, None], k, size), size)
    rows = multiply(signal[: num_rows * length], length, within).astype(np.clongdouble)
    starts = compute_roots_of_unity(compute_multiples(np.arange(num_rows)[:, None] * length, k, size), size)
    total = (rows * starts).sum(axis=0)
    rest = size - num_rows * length
    if rest:
        tail = multiply(signal[num_rows * length :], rest, within[:rest]).astype(np.clongdouble)
        total = total + tail[0] * compute_roots_of_unity(compute_multiples(num_rows * length, k, size), size)
    return total


def check_transform(
    signal: Any, transform: Any, size: int, dtype: str, to_host: Callable[[Any], Any], device: str = "cpu"
) -> Check:
    """Check some frequencies against the whole signal, and some samples against the whole transform.

    A sample depends on every value of the transform, so an error anywhere is detected. The framework under
    test only provides its values.
    """
    multiply = functools.partial(compute_host_product, to_host=to_host, device=device)
    random = np.random.default_rng()
    chosen = random.integers(0, size, (2, NUM_CHECKED))
    scale = math.sqrt(float(np.mean(np.abs(to_host(signal[:NUM_SCALED]).astype(np.complex128)) ** 2)))
    errors = []
    for source, target, sign, divisor in ((signal, transform, 1, 1.0), (transform, signal, -1, float(size))):
        indices = chosen[0 if sign == 1 else 1]
        expected = sum_by_definition(source, size, sign * indices, multiply) / divisor
        actual = np.array([to_host(target[int(k) : int(k) + 1])[0] for k in indices])
        unit = scale * (math.sqrt(size) if sign == 1 else 1.0)
        errors.append(np.max(np.abs(actual - expected)) / unit)
    transform_roundoff = UNIT_ROUNDOFF[dtype] * math.log2(max(2, size))
    tolerance = SAFETY * (transform_roundoff + REFERENCE_ROUNDOFF * size**0.25)
    return Check(float(np.max(errors)), tolerance, "direct sums for some frequencies and samples")


def compute_host_product(
    values: Any, length: int, matrix: Any, to_host: Callable[[Any], Any] = np.asarray, device: str = "cpu"
) -> Any:
    """Multiply rows of that length with a matrix, in complex128 on the host, some rows at a time."""
    num_values = max(1, HOST_BLOCK // length) * length

    def compute_part(start: int) -> Any:
        part = to_host(values[start : start + num_values])
        return part.astype(np.complex128, copy=False).reshape(-1, length) @ matrix

    return np.concatenate(map_blocks(compute_part, range(0, int(values.shape[0]), num_values), device))


def summarize_phases(phases_s: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the median seconds of both phases and the fraction of the merge; empty before the first step."""
    if not phases_s["merge"]:
        return {}
    sub_s, merge_s = (float(np.median(phases_s[name])) for name in ("sub_transforms", "merge"))
    return {"sub_transforms_s": sub_s, "merge_s": merge_s, "merge_fraction": round(merge_s / (sub_s + merge_s), 4)}


def compute_multiples(positions: Any, k: Any, size: int) -> Any:
    """Return positions · k modulo size, without overflow for sizes up to 2^40."""
    high, low = np.divmod(k, 2**20)
    positions = np.asarray(positions, dtype=np.int64) % size
    return ((positions * high % size) * 2**20 + positions * low) % size
