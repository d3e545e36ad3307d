"""A user's own step as a job, in any framework.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from corewise.runtimes.base import Check, ReplicaJob, WorkloadError
from corewise.spec.trial import NO_CHECK
from corewise.workloads.custom import CustomStep


class StepJob(ReplicaJob):
    """Calls what the factory returned; several ranks of it are replicas that know nothing of each other."""

    def __init__(
        self,
        name: str,
        custom: CustomStep,
        facts: Callable[[], Mapping[str, Any]],
        finish: Callable[[], None],
    ) -> None:
        self.samples_per_step = custom.samples_per_step
        self._name, self._step, self._check = name, custom.step, custom.check
        self._facts, self._finish = facts, finish

    def check(self) -> Check:
        """The user's own verdict; none given passes."""
        if self._check is None:
            return Check(0.0, 0.0, NO_CHECK)
        verdict = self._check()
        try:
            error, tolerance = (float(v) for v in verdict)
        except (TypeError, ValueError):
            raise WorkloadError(
                f"{self._name}: check must return (error, tolerance), not {verdict!r}"
            ) from None
        return Check(error, tolerance, "the workload's own check")

    def step(self) -> None:
        self._step()
        self._finish()

    def facts(self) -> Mapping[str, Any]:
        return self._facts()
