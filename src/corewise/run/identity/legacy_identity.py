"""Finds records of trials by the ids that they had before code had versions.

Until November 2026 an id contained hashes of all source files. The hashes of the last such version are
frozen here, so its records still count as done. Remove this module when no such store is in use.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from corewise.measured.trial import Protocol
from corewise.measured.workloads.custom import find_source_file, is_custom
from corewise.run.identity.framework_packages import list_framework_versions
from corewise.run.identity.trial_identity import (
    ADDED_PARAMETERS,
    ADDED_PROTOCOL_FIELDS,
    hash_identity,
    normalize_workload_name,
    omit_added,
)
from corewise.run.machine_view import Host, Interpreter
from corewise.run.plan import Plan
from corewise.store.store import Store

# Hashes of all files of workloads and runtimes, and of the Corewise library.
BUILT_IN_SOURCE = "a1aaf8e978ef667243e2bd5a9fece32712b0ecf04923e6a7b30124f0662d3e6a"
LIBRARY_SOURCE = "a061a389311a7a0ffda49d4ae7397d82d9b120e2aa98169efbc70aa842c27430"
# Trials with these parameter values measured the Corewise library.
LIBRARY_VALUES: Mapping[str, tuple[str, ...]] = {"execution": ("malleable", "quickened"), "freezing": ("full",)}
# Parameter -> current value -> old value, for values that were renamed since.
OLD_VALUES: Mapping[str, Mapping[Any, Any]] = {"execution": {"fast-kernels": "quickened"}}


def keep_old_ids(plan: Plan, store: Store) -> Plan:
    """Return the plan with the old ids of those trials that the store knows by them."""
    done = store.read_done_ids()
    if not done:
        return plan

    def choose_id(new: str, params: Mapping[str, Any], protocol: Protocol, generation: str = "") -> str:
        # The id of a plan that ran nothing may be unknown.
        if not new or generation or new in done:
            return new
        old = compute_old_identity(params, protocol, plan.host, plan.interpreter, plan.study.environment)
        return old if old in done else new

    return replace(
        plan,
        trials=tuple(
            replace(each, trial_id=choose_id(each.trial_id, each.params.to_mapping(), each.protocol, each.generation))
            for each in plan.trials
        ),
        skipped=tuple(
            replace(each, trial_id=choose_id(each.trial_id, each.params, plan.study.protocol)) for each in plan.skipped
        ),
    )


def compute_old_identity(
    params: Mapping[str, Any], protocol: Protocol, host: Host, interpreter: Interpreter, extra_env: Mapping[str, str]
) -> str:
    """Compute the id that the last version with hashed sources gave a trial."""
    old = {name: OLD_VALUES.get(name, {}).get(value, value) for name, value in params.items()}
    workload = str(params["workload"])
    is_library = any(old.get(name) in values for name, values in LIBRARY_VALUES.items())
    source = _hash_file(workload) if is_custom(workload) else BUILT_IN_SOURCE
    identity = {
        "schema": 1,
        "params": {**omit_added(old, ADDED_PARAMETERS), "workload": normalize_workload_name(old)},
        "protocol": omit_added(asdict(protocol), ADDED_PROTOCOL_FIELDS),
        "source": [source, BUILT_IN_SOURCE, *([LIBRARY_SOURCE] if is_library else [])],
        "python": [*interpreter.command[:-1], interpreter.version],
        "framework": list_framework_versions(str(params["runtime"]), interpreter),
        "host_class": host.class_hash,
        "allocation": host.compute_allocation_shape(),
        "environment": dict(extra_env),
    }
    return hash_identity(identity)


def _hash_file(workload: str) -> str:
    return hashlib.sha256(find_source_file(workload).read_bytes()).hexdigest()
