"""A job that is taken apart once it has been sampled, in the same pinned and proven process.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping

from corewise.machine import pinning
from corewise.runtimes.base import Infeasible, Job
from corewise.runtimes.torch.breakdown import break_down, refuse
from corewise.runtimes.torch.breakdown_rounds import Effort
from corewise.workloads.breakdown import to_json

ASKED = "breakdown"  # the parameter that asks for it: how much is measured


class BreakdownJob:
    """The job itself in all it does, and its breakdown among the facts of its samples."""

    def __init__(self, job: Any, params: Mapping[str, Any]) -> None:
        refuse(job, params)
        self._job, self._params = job, params
        self._tell: Callable[[str], Any] = lambda _phase: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def tell_phases(self, tell: Callable[[str], Any]) -> None:
        """Say through `tell` what is measured from now on."""
        self._tell = tell

    def sampled_facts(self) -> Mapping[str, Any]:
        """The breakdown, after the samples; raises Infeasible when a thread has left its CPUs meanwhile."""
        cpus = sorted(os.sched_getaffinity(0))
        found = break_down(self._job, self._params, Effort(**self._params[ASKED]), self._tell)
        astray = pinning.violations(pinning.read_thread_masks(), cpus, str(self._params["bind"]))
        if astray:
            raise Infeasible("; ".join(astray))
        return {ASKED: to_json(found)}


def taken_apart(job: Job, params: Mapping[str, Any]) -> Job:
    """The job with its breakdown; raises Infeasible for what cannot be taken apart."""
    return BreakdownJob(job, params)
