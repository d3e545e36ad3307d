"""Break a job down into operators after it was sampled, in the same pinned and verified process.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Mapping, Optional, Sequence, cast

from corewise.measured import pinning
from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible, Job
from corewise.measured.runtimes.torch.breakdown.step_breakdown import measure_breakdown, refuse_unsupported_job
from corewise.measured.runtimes.torch.breakdown.timing_rounds import BreakdownEffort
from corewise.measured.runtimes.torch.modules.module_job import ModuleJob
from corewise.measured.workloads.model_breakdown import to_json

# The name of the fact that holds the breakdown.
BREAKDOWN_FACT = "breakdown"


class BreakdownJob(Job):
    """Forwards to a job, and adds its breakdown to the facts of its samples.

    Raises Infeasible if the job cannot be broken down into operators.
    """

    def __init__(self, job: Job, params: TrialParameters) -> None:
        refuse_unsupported_job(job, params)
        self._job, self._params = job, params
        self.samples_per_step, self.independent = job.samples_per_step, job.independent
        self._report: Callable[[str], Any] = lambda _phase: None

    def check(self) -> Check:
        return self._job.check()

    def step(self) -> None:
        self._job.step()

    def agree(self, flag: bool) -> bool:
        return self._job.agree(flag)

    def read_facts(self) -> Mapping[str, Any]:
        return self._job.read_facts()

    def collect_metrics(self, step_s: float) -> Mapping[str, float]:
        return self._job.collect_metrics(step_s)

    def collect_notes(self) -> Sequence[str]:
        return self._job.collect_notes()

    def read_loss(self) -> Optional[float]:
        return self._job.read_loss()

    def close(self) -> None:
        self._job.close()

    def report_phases(self, report: Callable[[str], Any]) -> None:
        self._report = report

    def collect_sampled_facts(self) -> Mapping[str, Any]:
        """Measure the breakdown after the samples; raise Infeasible if a thread left its CPUs meanwhile."""
        cpus = sorted(os.sched_getaffinity(0))
        effort = BreakdownEffort(**(self._params.breakdown or {}))
        breakdown = measure_breakdown(cast(ModuleJob, self._job), self._params, effort, self._report)
        violations = pinning.find_violations(pinning.read_thread_masks(), cpus, self._params.bind.value)
        if violations:
            raise Infeasible("; ".join(violations))
        return {BREAKDOWN_FACT: to_json(breakdown)}
