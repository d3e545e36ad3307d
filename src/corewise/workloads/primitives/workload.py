"""What the primitives in benchdnn's notation have in common as workloads.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Mapping, Optional, Tuple

from corewise.workloads.base import workload_args
from corewise.workloads.primitives.memory_demand import FREE, Demand, shortage

REORDERS = ("included", "excluded")
INT8_SOURCES = ("u8", "s8")
FLOAT_DTYPES = ("float32", "bfloat16", "float16", "float64")
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclasses.dataclass(frozen=True)
class PrimitiveWorkload(abc.ABC):
    """A problem; one sample is one execution of the whole of it."""

    name: str
    summary: str
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False
    counts_by_dtype: bool = True

    @property
    @abc.abstractmethod
    def builders(self) -> Mapping[str, str]:
        """For each runtime, what turns a trial into a job."""

    @abc.abstractmethod
    def demand(self, args: Mapping[str, Any], dtype: str, device: str) -> Demand:
        """The memory that a process takes on the device."""

    @abc.abstractmethod
    def refusal(self, params: Mapping[str, Any]) -> Optional[str]:
        """Why the point does not exist in any framework, or None."""

    def lack_of_memory(
        self, params: Mapping[str, Any], free_bytes: int, there_is: str = FREE, factor: float = 1.0
    ) -> Optional[str]:
        """Why so many bytes do not do for a process, and what would fit; None where they do.

        The factor is what a framework takes over what the problem itself does.
        """
        if str(params["dtype"]) not in DTYPE_BYTES:  # refused for another reason
            return None
        return shortage(self._demanded(params, factor), free_bytes, there_is)

    def needed_bytes(self, params: Mapping[str, Any], factor: float = 1.0) -> int:
        """What a process takes."""
        demand = self._demanded(params, factor)
        return demand.bytes_for(demand.num)

    def _demanded(self, params: Mapping[str, Any], factor: float) -> Demand:
        return self.demand(workload_args(params), str(params["dtype"]), str(params["device"])).times(factor)

    @property
    def runtimes(self) -> Tuple[str, ...]:
        return tuple(self.builders)
