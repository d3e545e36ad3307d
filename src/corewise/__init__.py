"""Corewise measures, explains and improves how deep-learning and HPC workloads run on a machine."""

from __future__ import annotations

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # When asked for and by name: this file travels to the measured side, where there is no tuner.
    from importlib import import_module

    if name == "tune":
        return import_module("corewise.tuner.api").tune
    if name in ("malleable", "parallel"):
        return getattr(import_module(f"corewise.dataflow.{name}"), name)
    if name == "freeze":
        return import_module("corewise.runtimes.torch.prepared").freeze
    if name == "quicken":
        return import_module("corewise.runtimes.torch.quickened").quicken
    if name == "quantize":
        return import_module("corewise.runtimes.torch.quantization").quantize
    if name == "report_progress":
        return import_module("corewise.progress").report_progress
    raise AttributeError(f"module 'corewise' has no attribute {name!r}")
