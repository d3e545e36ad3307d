"""The common base of primitives in benchdnn's notation.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Workload
from corewise.measured.workloads.primitives.memory_demand import FREE, MemoryDemand, explain_shortage

REORDERS = ("included", "excluded")
INT8_SOURCES = ("u8", "s8")
FLOAT_DTYPES = ("float32", "bfloat16", "float16", "float64")
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclasses.dataclass(frozen=True)
class PrimitiveWorkload(Workload):
    """A primitive; one sample is one execution of the whole problem."""

    name: str
    summary: str
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False
    counts_by_dtype: bool = True

    @property
    @abc.abstractmethod
    def builders(self) -> Mapping[str, str]:
        """The function that builds a job, by runtime."""

    @abc.abstractmethod
    def build_demand(self, args: Mapping[str, Any], dtype: str, device: str) -> MemoryDemand:
        """Return the device memory of a process."""

    @abc.abstractmethod
    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        """Return why no framework can run this point, or None."""

    def explain_memory_shortage(
        self, params: TrialParameters, free_bytes: int, availability: str = FREE, factor: float = 1.0
    ) -> Optional[str]:
        """Return why a process needs more than `free_bytes` and what would fit; None if it fits.

        `factor` is the framework's need relative to the problem's tensors.
        """
        # Unknown dtypes are refused elsewhere.
        if params.dtype.value not in DTYPE_BYTES:
            return None
        return explain_shortage(self._build_scaled_demand(params, factor), free_bytes, availability)

    def estimate_memory_bytes(self, params: TrialParameters, factor: float = 1.0) -> int:
        """Estimate the memory of a process."""
        demand = self._build_scaled_demand(params, factor)
        return demand.count_bytes(demand.num)

    def _build_scaled_demand(self, params: TrialParameters, factor: float) -> MemoryDemand:
        return self.build_demand(params.arguments, params.dtype.value, params.device.value).scale(factor)
