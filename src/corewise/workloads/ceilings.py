"""What `corewise doctor --ceilings` runs: no workload of studies, but run as one, with placement and proof.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Tuple

from corewise.workloads.base import Work


@dataclasses.dataclass(frozen=True)
class CeilingsWorkload:
    """One step measures every ceiling of its place once."""

    name: str = "ceilings"
    summary: str = "bandwidth and flop rates of this machine, for `corewise doctor --ceilings`"
    modes: Tuple[str, ...] = ("infer",)
    concurrent: bool = False

    @property
    def builders(self) -> Mapping[str, str]:
        """For each runtime, what turns a trial into a job: `function(params, context) -> Job`."""
        return {
            "numpy": "corewise.runtimes.numpy.ceilings:prepare_ceilings",
            "torch": "corewise.runtimes.torch.ceilings:prepare_ceilings",
        }

    @property
    def runtimes(self) -> Tuple[str, ...]:
        return tuple(self.builders)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Bytes of each array of a bandwidth, whether products are measured, seconds of one sample."""
        return {"array_bytes": 2**28, "products": True, "probe_s": 0.03}

    def work(self, mode: str, args: Mapping[str, Any]) -> Work:
        """Nothing that can be told beforehand."""
        return Work(flops_per_sample=0.0, bytes_per_sample=0.0, num_parameters=0)


CEILINGS = CeilingsWorkload()
