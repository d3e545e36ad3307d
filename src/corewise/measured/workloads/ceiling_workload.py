"""The workload of `corewise doctor --ceilings`, which studies cannot use.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.workloads.base import Work, Workload


@dataclasses.dataclass(frozen=True)
class CeilingsWorkload(Workload):
    """One step measures each ceiling of the rank's CPUs or GPU once."""

    name: str = "ceilings"
    summary: str = "bandwidth and flop rates of this machine, for `corewise doctor --ceilings`"
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False

    @property
    def builders(self) -> Mapping[str, str]:
        return {
            "numpy": "corewise.measured.runtimes.numpy.ceilings:prepare_ceilings",
            "torch": "corewise.measured.runtimes.torch.ceilings:prepare_ceilings",
        }

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Array size for bandwidths, whether matrix products are measured, and seconds per sample."""
        return {"array_bytes": 2**28, "products": True, "probe_s": 0.03}

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Return zero work: the rates are measured, not counted."""
        return Work(flops_per_sample=0.0, bytes_per_sample=0.0, num_parameters=0)


CEILINGS = CeilingsWorkload()
