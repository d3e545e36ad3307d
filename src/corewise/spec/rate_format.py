"""The number format whose flop rate bounds what is computed: it chooses the ceiling and names the roof."""

from collections.abc import Mapping
from typing import Any

SHORTENED = {"tf32": "tf32", "bf16": "bfloat16"}  # what float32 is computed in where that is asked for
SAME_RATE = {"complex128": "float64", "complex64": "float32", "float16": "bfloat16"}  # of another format


def rate_format(params: Mapping[str, Any]) -> str:
    """The number format whose flop rate bounds the trial of these parameters."""
    on_gpu = params.get("device") == "cuda"
    convolves = on_gpu and _takes_images(str(params.get("workload", "")))
    return computed_in(str(params.get("dtype", "float32")), params, convolves=convolves)


def computed_in(dtype: str, params: Mapping[str, Any], *, convolves: bool) -> str:
    """The format that numbers of this one are computed in, under the settings of a trial."""
    precision = str(params.get("float32_precision", "default"))
    if dtype != "float32":
        return dtype
    if precision in SHORTENED:
        return SHORTENED[precision]
    is_torch = str(params.get("runtime", "torch")) == "torch"  # other frameworks are told not to shorten
    return "tf32" if convolves and is_torch and params.get("device") == "cuda" else dtype


def _takes_images(name: str) -> bool:
    from corewise.workloads.base import traits_of  # here: `doctor` reads ceilings and needs no workload
    from corewise.workloads.custom import is_custom
    from corewise.workloads.registry import UnknownName, find_workload

    try:
        return not is_custom(name) and bool(traits_of(find_workload(name), {}).takes_images)
    except UnknownName:
        return False
