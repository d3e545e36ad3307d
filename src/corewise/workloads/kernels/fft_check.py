"""Values of a discrete Fourier transform by its definition, to hold a fast one against.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Mapping

import numpy as np

from corewise.runtimes.base import Check
from corewise.workloads.kernels.host_blocks import over_blocks
from corewise.workloads.kernels.roots_of_unity import roots_of_unity

UNIT_ROUNDOFF = {"complex128": 2.0**-53, "complex64": 2.0**-24}
SAFETY = 4.0
REFERENCE_ROUNDOFF = 2.0**-53  # the sums are those of complex128, whatever is checked
HOST_BLOCK = 2**22  # values brought to the host at a time
NUM_CHECKED = 4  # of each: frequencies from the signal, and samples from the transform
NUM_SCALED = 2**16  # values the size of the numbers is taken from

# (a slice of the array as rows of this length, a matrix) -> their product, in host memory
Product = Callable[[Any, int, Any], Any]


def sums_by_definition(signal: Any, size: int, frequencies: Any, multiply: Product) -> Any:
    """Σ x[n]·e^(-2πi·n·k/size) for each frequency k; negative ones give the inverse transform, unscaled.

    Rows of about √size values are multiplied with their roots in complex128; the rows' sums are added in
    long double.
    """
    length = max(1, math.isqrt(size))
    num_rows = size // length
    k = np.asarray(frequencies, dtype=np.int64) % size
    within = roots_of_unity(_multiples(np.arange(length)[:, None], k, size), size)
    rows = multiply(signal[: num_rows * length], length, within).astype(np.clongdouble)
    starts = roots_of_unity(_multiples(np.arange(num_rows)[:, None] * length, k, size), size)
    total = (rows * starts).sum(axis=0)
    rest = size - num_rows * length
    if rest:
        tail = multiply(signal[num_rows * length :], rest, within[:rest]).astype(np.clongdouble)
        total = total + tail[0] * roots_of_unity(_multiples(num_rows * length, k, size), size)
    return total


def check_transform(
    signal: Any, transform: Any, size: int, dtype: str, to_host: Callable[[Any], Any], device: str = "cpu"
) -> Check:
    """Some frequencies from the whole signal, and some samples of the signal from the whole transform.

    A sample depends on every value of the transform, so an error anywhere shows. The framework under test
    does nothing here but hand its numbers out.
    """
    multiply = functools.partial(host_product, to_host=to_host, device=device)
    random = np.random.default_rng()
    chosen = random.integers(0, size, (2, NUM_CHECKED))
    scale = math.sqrt(float(np.mean(np.abs(to_host(signal[:NUM_SCALED]).astype(np.complex128)) ** 2)))
    errors = []
    for source, target, sign, divisor in ((signal, transform, 1, 1.0), (transform, signal, -1, float(size))):
        own = chosen[0 if sign == 1 else 1]
        wanted = sums_by_definition(source, size, sign * own, multiply) / divisor
        found = np.array([to_host(target[int(k) : int(k) + 1])[0] for k in own])
        unit = scale * (math.sqrt(size) if sign == 1 else 1.0)
        errors.append(np.max(np.abs(found - wanted)) / unit)
    of_transform = UNIT_ROUNDOFF[dtype] * math.log2(max(2, size))
    tolerance = SAFETY * (of_transform + REFERENCE_ROUNDOFF * size**0.25)
    return Check(float(np.max(errors)), tolerance, "sums by the definition, of frequencies and of samples")


def host_product(
    values: Any,
    length: int,
    matrix: Any,
    to_host: Callable[[Any], Any] = np.asarray,
    device: str = "cpu",
) -> Any:
    """Rows of that length times a matrix, in complex128 on the host, a part of the rows at a time."""
    num_values = max(1, HOST_BLOCK // length) * length

    def multiplied(start: int) -> Any:
        part = to_host(values[start : start + num_values])
        return part.astype(np.complex128, copy=False).reshape(-1, length) @ matrix

    return np.concatenate(over_blocks(multiplied, range(0, int(values.shape[0]), num_values), device))


def facts_of_phases(phases_s: Mapping[str, Any]) -> Mapping[str, Any]:
    """Median seconds of the two phases of a transform, and the merge's part; nothing before a step."""
    if not phases_s["merge"]:
        return {}
    sub_s, merge_s = (float(np.median(phases_s[name])) for name in ("sub_transforms", "merge"))
    return {
        "sub_transforms_s": sub_s,
        "merge_s": merge_s,
        "merge_fraction": round(merge_s / (sub_s + merge_s), 4),
    }


def _multiples(positions: Any, k: Any, size: int) -> Any:
    """positions · k modulo size, without overflow for sizes up to 2^40."""
    high, low = np.divmod(k, 2**20)
    positions = np.asarray(positions, dtype=np.int64) % size
    return ((positions * high % size) * 2**20 + positions * low) % size
