"""A model taken apart in a rank of its own, which is pinned, checked, warmed up and sampled as any."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corewise.engine.plan import Planner
from corewise.engine.warm_parent import ParentFailed, ParentPool
from corewise.machine.ceilings import Ceilings
from corewise.machine.kept_ceilings import read_kept
from corewise.spec.cache_folder import default_cache
from corewise.spec.errors import UserError
from corewise.spec.study import Study
from corewise.spec.trial import NOT_NOW, Protocol, RankResult, Trial, to_json, write_json_aside
from corewise.workloads.breakdown import Breakdown, from_json

ASKED = "breakdown"  # the parameter under which the measured side is asked, and under which it answers
PROTOCOL = Protocol(
    min_runs=1, max_runs=1, min_samples=3, min_sample_s=0.2, max_warmup_s=10.0, timeout_s=1800.0
)
USERS_MISTAKES = ("infeasible", NOT_NOW, "factory", "missing")


class NotTakenApart(Exception):
    """The rank failed; its text is the reason."""


@dataclass(frozen=True)
class TakenApart:
    """A breakdown with what it was measured on."""

    breakdown: Breakdown
    trial: Trial
    versions: Mapping[str, str]
    ceilings: Ceilings | None


def plan_trial(planner: Planner, study: Study, effort: Mapping[str, Any]) -> Trial:
    """The one trial of the study, asking for its breakdown; a UserError where it cannot exist here."""
    plan = planner.plan(replace(study, protocol=PROTOCOL))
    if plan.skipped:
        raise UserError(f"{study.workloads[0]} cannot be taken apart here: {plan.skipped[0].reason}")
    [trial] = plan.trials
    return replace(trial, params={**trial.params, ASKED: dict(effort)})


def take_apart(
    planner: Planner, trial: Trial, on_phase: Callable[[str], None] = lambda phase: None
) -> TakenApart:
    """The breakdown of the trial; UserError for a mistake of the user, NotTakenApart when the rank failed."""
    with tempfile.TemporaryDirectory(prefix="corewise-primitives-") as name:
        folder = Path(name)
        trial_file = folder / "trial.json"
        write_json_aside(trial_file, to_json(trial))
        pool = ParentPool(planner.worker, folder)
        try:
            on_phase("importing")
            [result] = pool.get(trial).run(trial, trial_file, folder, on_phase)
        except ParentFailed as problem:
            if problem.kind in USERS_MISTAKES:
                raise UserError(str(problem)) from problem
            raise NotTakenApart(str(problem)) from problem
        finally:
            pool.kill()  # Ctrl-C leaves nothing behind
    _require_success(trial, result)
    facts = dict(result.facts)
    versions = dict(facts["versions"])
    return TakenApart(from_json(facts[ASKED]), trial, versions, _kept(planner, versions))


def _require_success(trial: Trial, result: RankResult) -> None:
    if result.status == "ok" and ASKED in result.facts:
        return
    name = str(trial.params["workload"])
    reason = result.reason or "the rank left no breakdown"
    told = reason if reason.startswith(name) else f"{name}: {reason}"
    if result.kind in USERS_MISTAKES:
        raise UserError(told)
    raise NotTakenApart(told)


def _kept(planner: Planner, versions: Mapping[str, str]) -> Ceilings | None:
    """What `corewise doctor --ceilings` has kept for this machine; the planner has told of damaged files."""
    host = planner.host
    kept = read_kept(
        default_cache(), host.class_hash, host.allocation_shape(), "torch", versions.get("torch", "")
    )
    return kept.ceilings
