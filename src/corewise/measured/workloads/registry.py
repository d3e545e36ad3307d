"""Workloads by name, imported on first use. Other packages add theirs by entry point.

Measured side: standard library only, Python 3.9. A new workload is one file and one line here.

The version counts changes of the computation. It is part of a trial's identity, so raising it makes every
trial of that workload new. `python -m tests.identity_lock` reports when it must be raised.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from typing import Any, Iterable, Mapping, Optional, Tuple, cast

from corewise.measured.workloads import custom
from corewise.measured.workloads.base import Workload


@dataclasses.dataclass(frozen=True)
class RegistryEntry:
    """The location of an object (`module:attribute`) and the version of its computation."""

    target: str
    version: int


BUILT_IN: Mapping[str, RegistryEntry] = {
    "alexnet": RegistryEntry("corewise.measured.workloads.models.alexnet:ALEXNET", version=1),
    "resnet18": RegistryEntry("corewise.measured.workloads.models.resnet:RESNET18", version=1),
    "resnet34": RegistryEntry("corewise.measured.workloads.models.resnet:RESNET34", version=1),
    "resnet50": RegistryEntry("corewise.measured.workloads.models.resnet:RESNET50", version=1),
    "resnext50_32x4d": RegistryEntry("corewise.measured.workloads.models.resnet:RESNEXT50_32X4D", version=1),
    "wide_resnet101_2": RegistryEntry("corewise.measured.workloads.models.resnet:WIDE_RESNET101_2", version=1),
    "inception_v3": RegistryEntry("corewise.measured.workloads.models.inception:INCEPTION_V3", version=1),
    "lstm_ensemble": RegistryEntry("corewise.measured.workloads.models.lstm_ensemble:LSTM_ENSEMBLE", version=1),
    "transformer": RegistryEntry("corewise.measured.workloads.models.transformer:TRANSFORMER", version=1),
    "two_tower": RegistryEntry("corewise.measured.workloads.models.two_tower:TWO_TOWER", version=1),
    "mixture_of_experts": RegistryEntry(
        "corewise.measured.workloads.models.mixture_of_experts:MIXTURE_OF_EXPERTS", version=1
    ),
    "matmul": RegistryEntry("corewise.measured.workloads.primitives.matmul:MATMUL", version=1),
    "convolution": RegistryEntry("corewise.measured.workloads.primitives.convolution:CONVOLUTION", version=1),
    "matrix_product": RegistryEntry("corewise.measured.workloads.primitives.matrix_product:MATRIX_PRODUCT", version=1),
    "lstm_cell": RegistryEntry("corewise.measured.workloads.primitives.lstm_cell:LSTM_CELL", version=1),
    "stream": RegistryEntry("corewise.measured.workloads.kernels.stream:STREAM", version=1),
    "gemm": RegistryEntry("corewise.measured.workloads.kernels.gemm:GEMM", version=1),
    "tiled_product": RegistryEntry(
        "corewise.measured.workloads.kernels.tiled_product.workload:TILED_PRODUCT", version=1
    ),
    "fft": RegistryEntry("corewise.measured.workloads.kernels.fft.workload:FFT", version=1),
    "cg": RegistryEntry("corewise.measured.workloads.kernels.cg.workload:CG", version=1),
    "distributed_cg": RegistryEntry(
        "corewise.measured.workloads.kernels.distributed.cg_workload:DISTRIBUTED_CG", version=1
    ),
    "distributed_product": RegistryEntry(
        "corewise.measured.workloads.kernels.distributed.product_workload:DISTRIBUTED_PRODUCT", version=1
    ),
    "distributed_fft": RegistryEntry(
        "corewise.measured.workloads.kernels.distributed.fft_workload:DISTRIBUTED_FFT", version=1
    ),
    "communication": RegistryEntry("corewise.measured.workloads.kernels.communication:COMMUNICATION", version=1),
}

# Other commands run these as workloads. Studies cannot name them and `corewise list` does not show them.
UNLISTED: Mapping[str, RegistryEntry] = {
    "ceilings": RegistryEntry("corewise.measured.workloads.ceiling_workload:CEILINGS", version=1)
}


class UnknownName(LookupError):
    """An unregistered name; the message suggests the closest known one."""


@dataclasses.dataclass(frozen=True)
class WorkloadInfo:
    """One row of `corewise list`; `num_parameters` is None if the workload could not be loaded."""

    name: str
    summary: str
    modes: Tuple[str, ...]
    runtimes: Tuple[str, ...]
    num_parameters: Optional[int]


@dataclasses.dataclass(frozen=True)
class Registry:
    """Names with the locations and versions of their objects, which are imported on first use.

    `noun` says in messages what the names stand for. `group` is the entry point group that extends the
    registry.
    """

    noun: str
    group: str
    built_in: Mapping[str, RegistryEntry]
    unlisted: Mapping[str, RegistryEntry] = dataclasses.field(default_factory=dict)

    def list_names(self) -> Tuple[str, ...]:
        """Return all known names: built-in ones in order, then those of other packages."""
        ours = tuple(self.built_in)
        others = {point.name for point in _list_entry_points(self.group)} - set(ours)
        return ours + tuple(sorted(others))

    def load(self, name: str) -> Any:
        """Import and return the object of that name; raise UnknownName if there is none."""
        # Reading entry points takes tens of milliseconds, so built-in names are looked up first.
        if name in self.built_in:
            return load_attribute(self.built_in[name].target)
        if name in self.unlisted:
            return load_attribute(self.unlisted[name].target)
        for point in _list_entry_points(self.group):
            if point.name == name:
                return point.load()
        raise UnknownName(f"unknown {self.noun} {name!r}; {_suggest_name(name, self.list_names())}")

    def find_version(self, name: str) -> Optional[int]:
        """Return the version of a built-in name; None for a name of another package."""
        ours = self.built_in.get(name) or self.unlisted.get(name)
        return ours.version if ours else None


WORKLOADS = Registry("workload", "corewise.workloads", BUILT_IN, UNLISTED)


def find_workload(name: str) -> Workload:
    """Return the workload of that name, or the user's workload for `path.py:factory`."""
    if custom.is_custom(name):
        return cast(Workload, custom.CustomWorkload(name))
    return cast(Workload, WORKLOADS.load(name))


def list_workloads() -> Tuple[WorkloadInfo, ...]:
    """Return one row for each registered workload."""
    return tuple(_describe_workload(name) for name in WORKLOADS.list_names())


def load_attribute(target: str) -> Any:
    """Import and return the object that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _describe_workload(name: str) -> WorkloadInfo:
    try:
        workload = find_workload(name)
        num_parameters = workload.count_work(workload.modes[-1], {}).num_parameters
    # An error in another package must not hide the rest of the list.
    except Exception as problem:
        return WorkloadInfo(name, f"cannot be loaded: {problem}", (), (), None)
    return WorkloadInfo(name, workload.summary, workload.modes, workload.runtimes, num_parameters)


def _list_entry_points(group: str) -> Iterable[Any]:
    # The import is slow and rarely needed.
    import importlib.metadata

    points: Any = importlib.metadata.entry_points()
    return cast(Iterable[Any], points.select(group=group) if hasattr(points, "select") else points.get(group, ()))


def _suggest_name(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(names)
