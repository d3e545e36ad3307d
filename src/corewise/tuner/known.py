"""What the store already says of a workload here, or of others like it: better places to begin than none."""

from collections.abc import Mapping
from typing import Any

from corewise.spec.record import Record
from corewise.spec.study import PRESETS
from corewise.store.brief import brief
from corewise.store.store import Store
from corewise.tuner.question import Tunable
from corewise.tuner.space import Setting
from corewise.workloads.base import Traits, traits_of, workload_args
from corewise.workloads.custom import is_custom
from corewise.workloads.registry import find_workload

SAME = "the same"  # work


def known_settings(tunable: Tunable, store: Store) -> list[Setting]:
    """Settings of the quickest records on this kind of machine: of the same work, and of another like it."""
    best: dict[str, Record] = {}  # by the kind of work
    for record in store.records(brief).records:
        work = _work(tunable, record)
        if work and (work not in best or _rate(record) > _rate(best[work])):
            best[work] = record
    same = best.pop(SAME, None)
    kin = max(best.values(), key=lambda record: record.finished_at, default=None)
    found = [tunable.space.near(record.params) for record in (same, kin) if record is not None]
    return [setting for setting in dict.fromkeys(found) if setting != tunable.space.default]


def is_kin(mine: Traits, workload: str, arguments: Mapping[str, Any]) -> bool:
    """True when another workload takes the same kind of input, so that the same settings may suit it."""
    if is_custom(workload):
        return False
    try:
        theirs = traits_of(find_workload(workload), arguments)
    except (LookupError, ValueError):  # of a package that is no longer there
        return False
    return theirs.takes_images is not None and theirs.takes_images == mine.takes_images


def _work(tunable: Tunable, record: Record) -> str:
    """SAME, what other work the record is of where that is like it, or nothing."""
    question, params = tunable.question, record.params
    if record.status != "ok" or record.machine.get("host_class") != tunable.planner.host.class_hash:
        return ""
    if (params.get("mode"), params.get("runtime")) != (question.mode, question.runtime):
        return ""
    if params.get("device", "cpu") != question.fixed.get("device", "cpu"):
        return ""
    if _is_same_work(tunable, record):
        return SAME
    workload, arguments = str(params.get("workload")), workload_args(params)
    if not is_kin(tunable.traits, workload, arguments):
        return ""
    return f"{workload} {arguments} {_batch_of_all(params)}"


def _is_same_work(tunable: Tunable, record: Record) -> bool:
    question, params = tunable.question, record.params
    if params.get("workload") != question.workload or _batch_of_all(params) != question.batch:
        return False
    [trial] = tunable.plan(tunable.space.default, PRESETS["quick"]).trials
    return workload_args(params) == workload_args(trial.params)  # both with all defaults


def _batch_of_all(params: Mapping[str, Any]) -> int:
    num = 1 if params.get("batch_scope") == "global" else int(params.get("processes", 1))
    return num * int(params.get("batch", 0))


def _rate(record: Record) -> float:
    return float(record.metrics.get("samples_per_s", 0.0))
