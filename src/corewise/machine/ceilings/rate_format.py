"""Find the number format whose flop rate bounds a trial; it selects the ceiling and names the roof."""

from collections.abc import Mapping
from typing import Any

# Setting of float32_precision -> the format in which float32 products are computed.
REDUCED_PRECISION = {"tf32": "tf32", "bf16": "bfloat16"}
# Formats that compute at the flop rate of another, measured format.
SAME_RATE = {"complex128": "float64", "complex64": "float32", "float16": "bfloat16"}


def find_rate_format(params: Mapping[str, Any]) -> str:
    """Return the number format whose flop rate bounds a trial with these parameters."""
    on_gpu = params.get("device") == "cuda"
    convolves = on_gpu and _uses_images(str(params.get("workload", "")))
    return find_compute_format(str(params.get("dtype", "float32")), params, convolves=convolves)


def find_compute_format(dtype: str, params: Mapping[str, Any], *, convolves: bool) -> str:
    """Return the format in which numbers of `dtype` are computed under the settings of a trial."""
    precision = str(params.get("float32_precision", "default"))
    if dtype != "float32":
        return dtype
    if precision in REDUCED_PRECISION:
        return REDUCED_PRECISION[precision]
    # Corewise configures the other frameworks to convolve in full float32.
    is_torch = str(params.get("runtime", "torch")) == "torch"
    return "tf32" if convolves and is_torch and params.get("device") == "cuda" else dtype


def _uses_images(name: str) -> bool:
    # `corewise doctor` reads ceilings and must start fast, so workloads are imported only when needed.
    from corewise.measured.workloads.base import describe_traits
    from corewise.measured.workloads.custom import is_custom
    from corewise.measured.workloads.registry import UnknownName, find_workload

    try:
        return not is_custom(name) and bool(describe_traits(find_workload(name), {}).takes_images)
    except UnknownName:
        return False
