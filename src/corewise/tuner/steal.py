"""What the hypervisor takes of the CPUs' time: a sampling that lost more than usual is taken again."""

import statistics
from collections.abc import Mapping

MUCH = 0.03  # of the CPU time
TIMES_USUAL = 1.5  # where others always take some, another sampling is no better
LONG_STEP_S = 2.0  # what happens within such a step averages out, and another one takes its time
FEW = 8  # samplings, before which nothing is known of what is usual


def stolen_share(metrics: Mapping[str, float]) -> float:
    """The share of its CPUs' time that others took from under this machine."""
    given_s = metrics.get("own_cpu_s", 0.0)
    return metrics.get("steal_s", 0.0) / given_s if given_s > 0 else 0.0


class Disturbances:
    """Judges samplings by those before them."""

    def __init__(self) -> None:
        self._shares: list[float] = []

    def is_one(self, share: float, step_s: float = 0.0) -> bool:
        """True when others took much of a short step, and more than they usually do; remembers the share."""
        usual = statistics.median(self._shares) if len(self._shares) >= FEW else 0.0
        self._shares.append(share)
        return step_s <= LONG_STEP_S and share > max(MUCH, TIMES_USUAL * usual)
