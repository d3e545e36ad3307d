"""Run the step of a user as a job, in any framework.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from corewise.measured.runtimes.base import Check, ReplicaJob, WorkloadError
from corewise.measured.trial import NO_CHECK
from corewise.measured.workloads.custom import CustomStep


class StepJob(ReplicaJob):
    """Calls the step that the factory returned; its ranks are independent replicas."""

    def __init__(
        self, name: str, custom: CustomStep, facts: Callable[[], Mapping[str, Any]], finish: Callable[[], None]
    ) -> None:
        self.samples_per_step = custom.samples_per_step
        self._name, self._step, self._check = name, custom.step, custom.check
        self._facts, self._finish = facts, finish

    def check(self) -> Check:
        """Run the check of the user; a step without a check passes."""
        if self._check is None:
            return Check(0.0, 0.0, NO_CHECK)
        verdict = self._check()
        try:
            error, tolerance = (float(v) for v in verdict)
        except (TypeError, ValueError):
            raise WorkloadError(f"{self._name}: check must return (error, tolerance), not {verdict!r}") from None
        return Check(error, tolerance, "the check of the workload")

    def step(self) -> None:
        self._step()
        self._finish()

    def read_facts(self) -> Mapping[str, Any]:
        return self._facts()
