"""Reading a trial's parameters, the same for every runtime.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Optional

from corewise.runtimes.base import Infeasible
from corewise.spec.trial import NO_EFFECT
from corewise.workloads.base import Workload, workload_args


def rank_batch(params: Mapping[str, Any]) -> int:
    """The samples one rank works on in a step."""
    batch = int(params["batch"])
    if params["batch_scope"] == "process":
        return batch
    own = batch // int(params["processes"])
    if own < 1:
        raise Infeasible(
            f"a global batch of {batch} leaves nothing for each of {params['processes']} processes"
        )
    return own


def require_point(workload: Workload, params: Mapping[str, Any]) -> None:
    """Raises when the workload has no such mode or cannot take these arguments."""
    if params["mode"] not in workload.modes:
        raise Infeasible(
            f"{workload.name} has no mode {params['mode']!r}; it has {', '.join(workload.modes)}"
        )
    try:
        workload.work(str(params["mode"]), workload_args(params))
    except ValueError as problem:
        raise Infeasible(str(problem)) from problem


def require_defaults(params: Mapping[str, Any], names: Iterable[str], why: str) -> None:
    """Raises when one of the named parameters asks for something that would have no effect."""
    defaults: Mapping[str, Optional[str]] = {
        "device": "cpu",
        "dtype": "float32",
        "memory_format": "contiguous",
        "execution": "eager",
        "freezing": "none",
        "math": "vendor",
        "data": "synthetic",
    }
    for name in names:
        if params.get(name, defaults[name]) != defaults[name]:
            raise Infeasible(f"{name} {params[name]} {NO_EFFECT}{why}")
