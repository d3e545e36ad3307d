"""What the store already says of a workload here: a better place to begin than none."""

from collections.abc import Mapping
from typing import Any

from corewise.spec.record import Record
from corewise.store.brief import brief
from corewise.store.store import Store
from corewise.tuner.question import Tunable
from corewise.tuner.space import Setting


def known_settings(tunable: Tunable, store: Store) -> list[Setting]:
    """The setting of the quickest record of the same work on this kind of machine, or none."""
    best: Record | None = None
    for record in store.records(brief).records:
        if _is_same_work(tunable, record) and (best is None or _rate(record) > _rate(best)):
            best = record
    if best is None:
        return []
    setting = tunable.space.near(best.params)
    return [setting] if setting != tunable.space.default else []


def _is_same_work(tunable: Tunable, record: Record) -> bool:
    question, params = tunable.question, record.params
    if record.status != "ok" or record.machine.get("host_class") != tunable.planner.host.class_hash:
        return False
    if (params.get("workload"), params.get("mode")) != (question.workload, question.mode):
        return False
    if params.get("device", "cpu") != question.fixed.get("device", "cpu"):
        return False
    arguments = {name: value for name, value in question.fixed.items() if name.startswith("args.")}
    same_arguments = all(params.get(name) == value for name, value in arguments.items())
    return same_arguments and _batch_of_all(params) == question.batch


def _batch_of_all(params: Mapping[str, Any]) -> int:
    num = 1 if params.get("batch_scope") == "global" else int(params.get("processes", 1))
    return num * int(params.get("batch", 0))


def _rate(record: Record) -> float:
    return float(record.metrics.get("samples_per_s", 0.0))
