"""Corewise measures, explains and improves how deep-learning and HPC workloads run on a machine."""

from __future__ import annotations

__version__ = "0.1.0"


# Public names and their modules. They are imported on first use, because this file travels to the measured
# side, which has no tuner.
_PUBLIC = {
    "tune": "corewise.tuning.api",
    "malleable": "corewise.accelerate.malleable.module_wrapper",
    "parallel": "corewise.accelerate.malleable.marked_branches",
    "freeze": "corewise.accelerate.freeze.freeze_module",
    "use_fast_kernels": "corewise.accelerate.fast_kernels.use_fast_kernels",
    "quantize": "corewise.accelerate.quantize.quantize_module",
    "report_progress": "corewise.progress",
}
# Public modules, imported on first use for the same reason.
_PUBLIC_MODULES = ("batching", "cluster", "collectives")
__all__ = [*_PUBLIC, *_PUBLIC_MODULES]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _PUBLIC_MODULES:
        return import_module(f"corewise.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'corewise' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
