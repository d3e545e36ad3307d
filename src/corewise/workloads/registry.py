"""Workloads by name, loaded when asked for; outside packages add theirs by entry point.

Measured side: standard library only, Python 3.9. A new workload is one file and one line here.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from typing import Any, Iterable, Mapping, Optional, Tuple, cast

from corewise.workloads import custom
from corewise.workloads.base import Workload

BUILT_IN: Mapping[str, str] = {
    "alexnet": "corewise.workloads.models.alexnet:ALEXNET",
    "resnet18": "corewise.workloads.models.resnet:RESNET18",
    "resnet34": "corewise.workloads.models.resnet:RESNET34",
    "resnet50": "corewise.workloads.models.resnet:RESNET50",
    "resnext50_32x4d": "corewise.workloads.models.resnet:RESNEXT50_32X4D",
    "wide_resnet101_2": "corewise.workloads.models.resnet:WIDE_RESNET101_2",
    "inception_v3": "corewise.workloads.models.inception:INCEPTION_V3",
    "lstm_ensemble": "corewise.workloads.models.lstm_ensemble:LSTM_ENSEMBLE",
    "transformer": "corewise.workloads.models.transformer:TRANSFORMER",
    "two_tower": "corewise.workloads.models.two_tower:TWO_TOWER",
    "mixture_of_experts": "corewise.workloads.models.mixture_of_experts:MIXTURE_OF_EXPERTS",
    "matmul": "corewise.workloads.primitives.matmul:MATMUL",
    "convolution": "corewise.workloads.primitives.convolution:CONVOLUTION",
    "matrix_product": "corewise.workloads.primitives.matrix_product:MATRIX_PRODUCT",
    "lstm_cell": "corewise.workloads.primitives.lstm_cell:LSTM_CELL",
    "stream": "corewise.workloads.kernels.stream:STREAM",
    "gemm": "corewise.workloads.kernels.gemm:GEMM",
    "tiled_product": "corewise.workloads.kernels.tiled_product:TILED_PRODUCT",
    "fft": "corewise.workloads.kernels.fft:FFT",
    "cg": "corewise.workloads.kernels.cg:CG",
}

# Run as workloads are, by verbs of their own; no study names them and no list shows them.
UNLISTED: Mapping[str, str] = {"ceilings": "corewise.workloads.ceilings:CEILINGS"}


class UnknownName(LookupError):
    """A name that no one registered; its text gives the nearest known one."""


@dataclasses.dataclass(frozen=True)
class WorkloadInfo:
    """What `corewise list` shows of a workload."""

    name: str
    summary: str
    modes: Tuple[str, ...]
    runtimes: Tuple[str, ...]
    num_parameters: Optional[int]  # None when the workload could not be loaded


@dataclasses.dataclass(frozen=True)
class Registry:
    """Names and where their objects live (`module:attribute`); nothing is imported before it is asked for."""

    kind: str  # what the names are, for error texts
    group: str  # the entry point group that extends it
    built_in: Mapping[str, str]
    unlisted: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def names(self) -> Tuple[str, ...]:
        """All known names: ours in their order, then those of other packages."""
        ours = tuple(self.built_in)
        others = {point.name for point in _entry_points(self.group)} - set(ours)
        return ours + tuple(sorted(others))

    def load(self, name: str) -> Any:
        """The object of that name."""
        if name in self.built_in:  # the quick way: reading entry points takes tens of milliseconds
            return load_attribute(self.built_in[name])
        if name in self.unlisted:
            return load_attribute(self.unlisted[name])
        for point in _entry_points(self.group):
            if point.name == name:
                return point.load()
        raise UnknownName(f"unknown {self.kind} {name!r}; {_nearest(name, self.names())}")


WORKLOADS = Registry("workload", "corewise.workloads", BUILT_IN, UNLISTED)


def find_workload(name: str) -> Workload:
    """The workload of that name, or the user's own for `path.py:factory`."""
    if custom.is_custom(name):
        return cast(Workload, custom.CustomWorkload(name))
    return cast(Workload, WORKLOADS.load(name))


def list_workloads() -> Tuple[WorkloadInfo, ...]:
    """One row for each registered workload."""
    return tuple(_info(name) for name in WORKLOADS.names())


def load_attribute(target: str) -> Any:
    """What `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _info(name: str) -> WorkloadInfo:
    try:
        workload = find_workload(name)
        num_parameters = workload.work(workload.modes[-1], {}).num_parameters
    except Exception as problem:  # another package's fault must not hide the rest of the list
        return WorkloadInfo(name, f"cannot be loaded: {problem}", (), (), None)
    return WorkloadInfo(name, workload.summary, workload.modes, workload.runtimes, num_parameters)


def _entry_points(group: str) -> Iterable[Any]:
    import importlib.metadata  # slow to import, seldom needed

    found: Any = importlib.metadata.entry_points()
    return cast(
        Iterable[Any], found.select(group=group) if hasattr(found, "select") else found.get(group, ())
    )


def _nearest(word: str, known: Iterable[str]) -> str:
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(words)
