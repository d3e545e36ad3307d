"""Starting points for a search from stored records of the same or similar work on this class of machine."""

from collections.abc import Iterable, Mapping
from typing import Any

from corewise.measured.workloads.base import Traits, describe_traits, extract_workload_args
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.registry import find_workload
from corewise.study.record import Record
from corewise.study.study import PRESETS
from corewise.tuning.question import Tunable
from corewise.tuning.search.setting_space import Setting

# Marks records of the very work that is tuned.
SAME_WORK = "the same"


def find_known_settings(tunable: Tunable, records: Iterable[Record]) -> list[Setting]:
    """Return the fastest known settings on this class of machine: of the same work, and of similar work."""
    best: dict[str, Record] = {}
    for record in records:
        work = _identify_work(tunable, record)
        if work and (work not in best or _read_rate(record) > _read_rate(best[work])):
            best[work] = record
    same = best.pop(SAME_WORK, None)
    similar = max(best.values(), key=lambda record: record.finished_at, default=None)
    settings = [tunable.space.find_nearest(record.params) for record in (same, similar) if record is not None]
    return [setting for setting in dict.fromkeys(settings) if setting != tunable.space.default]


def is_similar(mine: Traits, workload: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether another workload takes the same type of input, so that its settings may fit."""
    if is_custom(workload):
        return False
    try:
        theirs = describe_traits(find_workload(workload), arguments)
    except (LookupError, ValueError):
        # Its package is no longer installed.
        return False
    return theirs.takes_images is not None and theirs.takes_images == mine.takes_images


def _identify_work(tunable: Tunable, record: Record) -> str:
    """Return SAME_WORK, an identifier of similar work, or an empty text."""
    question, params = tunable.question, record.params
    if record.status != "ok" or record.machine.get("host_class") != tunable.planner.host.class_hash:
        return ""
    if (params.get("mode"), params.get("runtime")) != (question.mode, question.runtime):
        return ""
    if params.get("device", "cpu") != question.fixed.get("device", "cpu"):
        return ""
    if _is_same_work(tunable, record):
        return SAME_WORK
    workload, arguments = str(params.get("workload")), extract_workload_args(params)
    if not is_similar(tunable.traits, workload, arguments):
        return ""
    return f"{workload} {arguments} {_compute_global_batch(params)}"


def _is_same_work(tunable: Tunable, record: Record) -> bool:
    question, params = tunable.question, record.params
    if params.get("workload") != question.workload or _compute_global_batch(params) != question.batch:
        return False
    [trial] = tunable.plan(tunable.space.default, PRESETS["quick"]).trials
    return extract_workload_args(params) == trial.params.arguments


def _compute_global_batch(params: Mapping[str, Any]) -> int:
    num = 1 if params.get("batch_scope") == "global" else int(params.get("processes", 1))
    return num * int(params.get("batch", 0))


def _read_rate(record: Record) -> float:
    return float(record.metrics.get("samples_per_s", 0.0))
