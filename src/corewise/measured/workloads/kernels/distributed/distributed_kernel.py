"""The common part of kernels whose ranks work on one problem and pass messages.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.kernels.kernel import Kernel


@dataclasses.dataclass(frozen=True)
class DistributedKernel(Kernel):
    """A kernel whose ranks share one problem; `num_ranks` sets whose memory the estimates are."""

    modes: Tuple[str, ...] = ("infer",)
    runtimes: Tuple[str, ...] = ("numpy", "torch")
    concurrent: bool = False
    num_ranks: int = 1

    is_distributed = True

    def share_among(self, num_ranks: int) -> Kernel:
        return dataclasses.replace(self, num_ranks=num_ranks)

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        return self.explain_ranks({**self.parameters, **params.arguments}, params.processes * params.nodes)

    @abc.abstractmethod
    def explain_ranks(self, args: Mapping[str, Any], num_ranks: int) -> Optional[str]:
        """Return why so many ranks cannot share the problem, or None; raise ValueError for invalid parameters."""
