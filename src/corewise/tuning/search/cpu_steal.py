"""CPU steal by the hypervisor: a sampling that lost more time than usual is repeated."""

import statistics
from collections.abc import Mapping

# Share of the CPU time from which on steal disturbs a sampling.
DISTURBING_SHARE = 0.03
# On a machine with constant steal, repeating helps only above this multiple of the usual share.
USUAL_SHARE_FACTOR = 1.5
# Steal averages out within a step of this many seconds, and repeating it is expensive.
LONG_STEP_S = 2.0
# Samplings after which the usual share is known.
MIN_HISTORY = 8


def compute_stolen_share(metrics: Mapping[str, float]) -> float:
    """Compute the share of CPU time that the hypervisor gave to others."""
    given_s = metrics.get("own_cpu_s", 0.0)
    return metrics.get("steal_s", 0.0) / given_s if given_s > 0 else 0.0


class StealDetector:
    """Compares the CPU steal of a sampling with earlier ones."""

    def __init__(self) -> None:
        self._shares: list[float] = []

    def is_disturbed(self, share: float, step_s: float = 0.0) -> bool:
        """Record the share and return whether it is high, higher than usual, and the step is short."""
        usual = statistics.median(self._shares) if len(self._shares) >= MIN_HISTORY else 0.0
        self._shares.append(share)
        return step_s <= LONG_STEP_S and share > max(DISTURBING_SHARE, USUAL_SHARE_FACTOR * usual)
