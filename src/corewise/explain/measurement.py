"""Measures a model's breakdown in one rank that is pinned, checked, warmed up and sampled like any other."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.cache_folder import find_cache_folder
from corewise.errors import UserError
from corewise.machine.ceilings.cache import read_cached_ceilings
from corewise.machine.ceilings.table import Ceilings
from corewise.measured.trial import REFUSALS, Protocol, RankResult, Trial
from corewise.measured.workloads.model_breakdown import Breakdown, from_json
from corewise.owned_files import build_owned_prefix
from corewise.run.plan import Planner
from corewise.run.warm_parent import ParentFailure, ParentPool
from corewise.study.study import Study

# The parameter that asks the measured side for a breakdown, and the fact that holds it.
BREAKDOWN_KEY = "breakdown"
PROTOCOL = Protocol(min_runs=1, max_runs=1, min_samples=3, min_sample_s=0.2, max_warmup_s=10.0, timeout_s=1800.0)
USER_ERROR_CAUSES = (*REFUSALS, "factory", "missing")


class BreakdownFailed(Exception):
    """The rank failed; the message is the reason."""


@dataclass(frozen=True)
class MeasuredBreakdown:
    """A breakdown with its trial, versions and ceilings."""

    breakdown: Breakdown
    trial: Trial
    versions: Mapping[str, str]
    ceilings: Ceilings | None


def plan_trial(planner: Planner, study: Study, effort: Mapping[str, Any]) -> Trial:
    """Plan the one trial of the study with its breakdown; raise UserError if it is infeasible here."""
    plan = planner.plan(replace(study, protocol=PROTOCOL))
    if plan.skipped:
        raise UserError(f"{study.workloads[0]} cannot be broken down here: {plan.skipped[0].reason}")
    [trial] = plan.trials
    return replace(trial, params=replace(trial.params, breakdown=dict(effort)))


def measure_breakdown(
    planner: Planner, trial: Trial, on_phase: Callable[[str], None] = lambda phase: None
) -> MeasuredBreakdown:
    """Measure the breakdown; raise UserError for a user's mistake, BreakdownFailed if the rank failed."""
    with tempfile.TemporaryDirectory(prefix=build_owned_prefix("corewise-primitives")) as name:
        folder = Path(name)
        pool = ParentPool(planner.worker, folder)
        try:
            on_phase("importing")
            [result] = pool.get(trial).run(trial, folder, on_phase)
        except ParentFailure as problem:
            if problem.category in USER_ERROR_CAUSES:
                raise UserError(str(problem)) from problem
            raise BreakdownFailed(str(problem)) from problem
        finally:
            # Ctrl-C leaves no process and no folder behind.
            pool.close()
    _require_success(trial, result)
    facts = dict(result.facts)
    versions = dict(facts["versions"])
    return MeasuredBreakdown(from_json(facts[BREAKDOWN_KEY]), trial, versions, _read_ceilings(planner, versions))


def _require_success(trial: Trial, result: RankResult) -> None:
    if result.status == "ok" and BREAKDOWN_KEY in result.facts:
        return
    name = trial.params.workload
    reason = result.reason or "the rank left no breakdown"
    message = reason if reason.startswith(name) else f"{name}: {reason}"
    if result.kind in USER_ERROR_CAUSES:
        raise UserError(message)
    raise BreakdownFailed(message)


def _read_ceilings(planner: Planner, versions: Mapping[str, str]) -> Ceilings | None:
    """Return the cached ceilings of this machine; the planner has already reported damaged files."""
    host = planner.host
    cached = read_cached_ceilings(
        find_cache_folder(), host.class_hash, host.compute_allocation_shape(), "torch", versions.get("torch", "")
    )
    return cached.ceilings
