"""The registry of runtimes and engines. Runtimes are imported on first use; plug-ins add more by entry point.

Measured side: standard library only, Python 3.9. A new runtime is one folder and one line here.
An engine executes a model inside a runtime. A version is raised when what is computed changes: see
`corewise.measured.workloads.registry`.
"""

from __future__ import annotations

from typing import Any, Mapping, cast

from corewise.measured.runtimes.base import Runtime
from corewise.measured.workloads.registry import Registry, RegistryEntry

BUILT_IN: Mapping[str, RegistryEntry] = {
    "numpy": RegistryEntry("corewise.measured.runtimes.numpy.runtime:NumpyRuntime", version=1),
    "torch": RegistryEntry("corewise.measured.runtimes.torch.runtime:TorchRuntime", version=2),
    "jax": RegistryEntry("corewise.measured.runtimes.jax.runtime:JaxRuntime", version=1),
    "tensorflow": RegistryEntry("corewise.measured.runtimes.tensorflow.runtime:TensorflowRuntime", version=1),
}

# By runtime, by the axis that selects the engine, and by the value of that axis. An engine without separate
# modules has no target, because the version of the runtime covers its code.
ENGINES: Mapping[str, Mapping[str, Mapping[str, RegistryEntry]]] = {
    "torch": {
        "execution": {
            "eager": RegistryEntry("", version=1),
            "compile": RegistryEntry(
                "corewise.measured.runtimes.torch.modules.compile_once:prepare_compiler", version=1
            ),
            "script": RegistryEntry("", version=1),
            "fast-kernels": RegistryEntry(
                "corewise.accelerate.fast_kernels.use_fast_kernels:use_fast_kernels", version=1
            ),
            "malleable": RegistryEntry(
                "corewise.measured.runtimes.torch.modules.malleable_module:wrap_malleable", version=3
            ),
        },
        "freezing": {
            "fold": RegistryEntry("corewise.accelerate.freeze.weight_folding:fold_module", version=1),
            "full": RegistryEntry("corewise.accelerate.freeze.freeze_module:freeze", version=2),
        },
        "dtype": {"int8": RegistryEntry("corewise.accelerate.quantize.quantize_module:quantize_module", version=1)},
        "collectives": {"shared": RegistryEntry("corewise.collectives:attach", version=1)},
    }
}

RUNTIMES = Registry("runtime", "corewise.runtimes", BUILT_IN)


def find_runtime(name: str) -> Runtime:
    """Return the runtime of that name, not yet warm."""
    return cast(Runtime, RUNTIMES.load(name)())


def list_runtimes() -> tuple[str, ...]:
    """List the names of all runtimes, whether or not their frameworks are installed."""
    return RUNTIMES.list_names()


def find_engine_versions(params: Mapping[str, Any]) -> dict[str, int]:
    """Find the versions of the engines that execute a trial, by the axis that selects them."""
    axes = ENGINES.get(str(params["runtime"]), {})
    return {axis: axes[axis][params[axis]].version for axis in axes if params.get(axis) in axes[axis]}
