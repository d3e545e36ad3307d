"""Runtimes by name, loaded when asked for; outside packages add theirs by entry point.

Measured side: standard library only, Python 3.9. A new runtime is one folder and one line here.
"""

from __future__ import annotations

from typing import Mapping, cast

from corewise.runtimes.base import Runtime
from corewise.workloads.registry import Registry

BUILT_IN: Mapping[str, str] = {
    "numpy": "corewise.runtimes.numpy.runtime:NumpyRuntime",
    "torch": "corewise.runtimes.torch.runtime:TorchRuntime",
    "jax": "corewise.runtimes.jax.runtime:JaxRuntime",
    "tensorflow": "corewise.runtimes.tensorflow.runtime:TensorflowRuntime",
}

RUNTIMES = Registry("runtime", "corewise.runtimes", BUILT_IN)


def find_runtime(name: str) -> Runtime:
    """A runtime of that name, not yet warm."""
    return cast(Runtime, RUNTIMES.load(name)())


def list_runtimes() -> tuple[str, ...]:
    """The names of all known runtimes, whether or not their frameworks are installed."""
    return RUNTIMES.names()
