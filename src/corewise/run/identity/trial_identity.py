"""Computes the identity of a trial; trials with equal identities are measured once."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corewise.measured.runtimes.registry import RUNTIMES, find_engine_versions
from corewise.measured.trial import SCHEMA_VERSION, Protocol
from corewise.measured.workloads.custom import find_source_file, is_custom
from corewise.measured.workloads.registry import WORKLOADS
from corewise.run.identity.framework_packages import list_framework_versions
from corewise.run.identity.source_fingerprint import SourceTree
from corewise.run.machine_view import Host, Interpreter

ID_LENGTH = 16
# Parameters and protocol fields that were added after 0.1.0, with the value that all earlier trials had. At this
# value they are left out of the hash, so that records from before they existed still count.
ADDED_PARAMETERS: Mapping[str, Any] = {
    "nodes": 1,
    "collectives": "default",
    "learning_rate_rule": "constant",
    "isa": "default",
    "optimizer": "sgd",
}
ADDED_PROTOCOL_FIELDS: Mapping[str, Any] = {"counters": "auto"}


def compute_trial_identity(
    params: Mapping[str, Any],
    protocol: Protocol,
    host: Host,
    interpreter: Interpreter,
    extra_env: Mapping[str, str],
    code_versions: Mapping[str, int | str],
    generation: str = "",
) -> str:
    """Compute the id of a trial; a trial whose id has a record is not measured again."""
    identity = {
        "schema": SCHEMA_VERSION,
        "params": {**omit_added(params, ADDED_PARAMETERS), "workload": normalize_workload_name(params)},
        "protocol": omit_added(asdict(protocol), ADDED_PROTOCOL_FIELDS),
        "code": dict(code_versions),
        "python": [*interpreter.command[:-1], interpreter.version],
        "framework": list_framework_versions(str(params["runtime"]), interpreter),
        "host_class": host.class_hash,
        "allocation": host.compute_allocation_shape(),
        "environment": dict(extra_env),
        "generation": generation,
    }
    return hash_identity(identity)


def omit_added(values: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those that were added later and have the value of all earlier trials."""
    return {name: value for name, value in values.items() if name not in added or added[name] != value}


def read_code_versions(params: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, int | str]:
    """Read the versions of the code that a trial runs, by the parameter that selects it.

    A user's file contributes its fingerprint as `source` instead. Code of other packages has neither.
    """
    workload, runtime = str(params["workload"]), str(params["runtime"])
    versions = {"workload": WORKLOADS.find_version(workload), "runtime": RUNTIMES.find_version(runtime)}
    known: dict[str, int | str] = {name: each for name, each in versions.items() if each is not None}
    if workload in sources:
        known["source"] = sources[workload]
    return {**known, **find_engine_versions(params)}


def hash_user_sources(workloads: Iterable[str]) -> dict[str, str]:
    """Hash the user's files among the workloads; raises WorkloadError when one is missing."""
    return {name: hash_user_source(find_source_file(name)) for name in workloads if is_custom(name)}


def hash_user_source(path: Path) -> str:
    """Hash a user's file and the modules that it imports from its folder."""
    tree = SourceTree(path.parent)
    return tree.compute_fingerprint(tree.collect_closure([path]))


def normalize_workload_name(params: Mapping[str, Any]) -> str:
    """Return the workload's name; for a user's file without its folder, which does not affect the result."""
    workload = str(params["workload"])
    return Path(workload).name if is_custom(workload) else workload


def hash_identity(identity: Mapping[str, Any]) -> str:
    """Compute the id of an identity."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
