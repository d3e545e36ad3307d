"""Builds the record of a trial from its runs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from corewise import __version__
from corewise.launch.worker_commands import build_run_command, format_shell_line
from corewise.measured.trial import INFEASIBLE, REFUSALS, Trial
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.registry import UnknownName, find_workload
from corewise.run.cachegrind_count import CachegrindCount
from corewise.run.identity.trial_identity import ADDED_PROTOCOL_FIELDS, omit_added
from corewise.run.plan import Plan, SkippedTrial
from corewise.run.roofline_metrics import compute_ceiling_metrics, list_ceiling_notes
from corewise.run.run_collector import compute_record_metrics
from corewise.run.trial_progress import TrialProgress
from corewise.study.record import Record, format_utc_now


def build_skipped_record(plan: Plan, point: SkippedTrial) -> Record:
    """Build the record of a point that is infeasible on this machine."""
    base = _build_base(plan, point.trial_id, "skipped")
    return replace(
        base,
        kind=INFEASIBLE,
        reason=point.reason,
        params=point.params,
        code_versions=point.code_versions,
        started_at=base.finished_at,
    )


def build_trial_record(
    plan: Plan, progress: TrialProgress, folder: str, count: CachegrindCount | None = None
) -> Record:
    """Build the record of a trial that needs no further run; `count` adds what cachegrind has counted."""
    trial = progress.trial
    failed = next((run for run in progress.runs if run.status != "ok"), None)
    status = "ok"
    if failed is not None:
        status = "skipped" if failed.kind in REFUSALS else "failed"
    metrics = {} if failed else compute_record_metrics(trial, progress.runs)
    metrics |= derive_workload_metrics(trial, metrics)
    metrics |= compute_ceiling_metrics(trial, metrics, plan.ceilings)
    if count is not None:
        metrics |= count.metrics
    lease = progress.lease
    return replace(
        _build_base(plan, trial.trial_id, status),
        kind=failed.kind if failed else "",
        reason=failed.reason if failed else "",
        params=trial.params.to_mapping(),
        metrics=metrics,
        runs=tuple(run.to_json() for run in progress.runs),
        disturbed=tuple(run.to_json() for run in progress.disturbed),
        command=format_manual_command(plan, trial, folder),
        env=trial.env,
        # Otherwise earlier records would count as measured with another protocol.
        protocol=omit_added(asdict(trial.protocol), ADDED_PROTOCOL_FIELDS),
        work=trial.work,
        code_versions=trial.code_versions,
        generation=trial.generation,
        notes=_collect_notes(
            progress,
            [
                *_list_core_notes(plan, trial),
                *list_ceiling_notes(trial, metrics, plan.host.facts.caches),
                *(count.notes if count is not None else ()),
            ],
        ),
        started_at=progress.started_at,
        lease=lease.token if lease else "",
        replaced_leases=lease.replaced if lease else (),
    )


def format_manual_command(plan: Plan, trial: Trial, folder: str) -> str:
    """Format the shell line that runs the trial once from a cold start; `folder` holds its trial file."""
    # A plan that ran nothing may not know the id.
    name = trial.trial_id or "ID"
    file, out = f"{folder}/{name}.json", f"{folder}/{name}-results"
    return format_shell_line(build_run_command(trial, plan.worker, file, out), trial.env, os.environ)


def _build_base(plan: Plan, trial_id: str, status: str) -> Record:
    return Record(
        trial_id=trial_id,
        status=status,
        study=plan.study.name,
        question=plan.study.question,
        machine=plan.host.describe(),
        versions={"python": plan.interpreter.version, **plan.interpreter.packages},
        corewise_version=__version__,
        finished_at=format_utc_now(),
    )


def derive_workload_metrics(trial: Trial, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that the workload itself derives from the time of a step."""
    name = trial.params.workload
    if "step_s" not in metrics or is_custom(name):
        return {}
    try:
        derived = dict(find_workload(name).derive_metrics(trial.params, _compute_median_step_s(trial, metrics)))
    except UnknownName:
        return {}
    if metrics.get("link_gbyte_per_s") and "bus_gbyte_per_s" in derived:
        derived["fraction_of_link"] = derived["bus_gbyte_per_s"] / metrics["link_gbyte_per_s"]
    return derived


def _compute_median_step_s(trial: Trial, metrics: Mapping[str, float]) -> float:
    """Return the step time that the record's bandwidth is based on, so that derived metrics agree with it."""
    if metrics.get("gbyte_per_s", 0.0) > 0:
        return trial.work["bytes_per_sample"] / (metrics["gbyte_per_s"] * 1e9)
    return metrics["step_s"]


def _list_core_notes(plan: Plan, trial: Trial) -> list[str]:
    note = plan.describe_cores(trial)
    return [note] if note else []


def _collect_notes(progress: TrialProgress, trial_notes: Sequence[str]) -> tuple[str, ...]:
    notes = [note for run in progress.runs for rank in run.ranks for note in rank.get("notes", ())]
    if progress.trial.protocol.start == "fresh":
        notes.append("each rank imported the framework: no warm parent was used")
    if progress.num_unrepeated:
        runs = (
            "1 disturbed run counts"
            if progress.num_unrepeated == 1
            else f"{progress.num_unrepeated} disturbed runs count"
        )
        notes.append(f"{runs}: the study had used up its time for repeats")
    return tuple(dict.fromkeys([*notes, *trial_notes]))
