"""A study on a machine -> the trials to run and the points that do not exist here. Runs nothing."""

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from corewise.engine.frameworks import framework_versions
from corewise.engine.machine_view import (
    PRELOADABLE,
    Host,
    Interpreter,
    interpreter_words,
    planning_view,
    preloadable_libraries,
    probe_interpreter,
    read_host,
)
from corewise.launcher.environment import trial_environment
from corewise.launcher.measured_side import build_worker
from corewise.launcher.ranks import place_params
from corewise.machine.ceilings import Ceilings
from corewise.machine.kept_ceilings import read_kept
from corewise.machine.libraries import install_hint
from corewise.machine.placement import PlacementError
from corewise.spec.cache_folder import default_cache
from corewise.spec.expand import expand
from corewise.spec.study import Study
from corewise.spec.trial import SCHEMA_VERSION, Protocol, RankPlacement, Trial
from corewise.workloads.base import work_of, workload_args
from corewise.workloads.custom import is_custom, package_hash, source_hash
from corewise.workloads.registry import find_workload

ID_LENGTH = 16
OWN_EXECUTIONS = ("malleable", "quickened")  # our own library, as frozen weights are
BUILT_IN_WORKLOAD = "matmul"  # any of ours: their hash is that of all our workloads and runtimes


@dataclass(frozen=True)
class Skipped:
    """A point that cannot exist here, with the reason."""

    trial_id: str
    params: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything a run needs; nothing of it has been run."""

    study: Study
    host: Host
    interpreter: Interpreter
    worker: Path
    trials: tuple[Trial, ...]
    skipped: tuple[Skipped, ...]
    num_excluded: int
    ceilings: Ceilings | None = None  # kept for this machine


def make_plan(study: Study, host: Host | None = None) -> Plan:
    """The plan of a study on this machine."""
    return Planner.of(study, host).plan(study)


@dataclass(frozen=True)
class Planner:
    """What plans of one machine and one interpreter share, read once: then a plan takes milliseconds."""

    host: Host
    interpreter: Interpreter
    worker: Path
    libraries: Mapping[str, Path]
    ceilings: Ceilings | None = None

    @classmethod
    def of(cls, study: Study, host: Host | None = None) -> "Planner":
        """The planner for this machine and the interpreter the study asks for."""
        host = host or read_host()
        worker = build_worker()
        interpreter = probe_interpreter(interpreter_words(study), worker, study.environment)
        return cls(
            host, interpreter, worker, preloadable_libraries(interpreter), _ceilings(host, interpreter)
        )

    def plan(self, study: Study) -> Plan:
        """The plan of a study with the same interpreter and environment."""
        hints = {name: install_hint(name) for name in PRELOADABLE}
        expansion = expand(study, planning_view(self.host, self.libraries), hints=hints)
        trials: list[Trial] = []
        skipped = [self._skip(study, point.params, point.reason) for point in expansion.skipped]
        for point in expansion.points:
            try:
                ranks = _place(self.host, point.params)
            except PlacementError as problem:
                skipped.append(self._skip(study, point.params, str(problem)))
                continue
            trials.append(self._trial(study, point.params, ranks))
        return Plan(
            study,
            self.host,
            self.interpreter,
            self.worker,
            tuple(trials),
            tuple(skipped),
            expansion.num_excluded,
            self.ceilings,
        )

    def _trial(self, study: Study, params: Mapping[str, Any], ranks: tuple[RankPlacement, ...]) -> Trial:
        return Trial(
            trial_id=self._identity(study, params),
            params=dict(params),
            protocol=study.protocol,
            ranks=ranks,
            env=trial_environment(params, self.libraries, study.environment),
            python=self.interpreter.words,
            work=_work(params),
        )

    def _skip(self, study: Study, params: Mapping[str, Any], reason: str) -> Skipped:
        return Skipped(self._identity(study, params), params, reason)

    def _identity(self, study: Study, params: Mapping[str, Any]) -> str:
        return trial_identity(params, study.protocol, self.host, self.interpreter, study.environment)


def trial_identity(
    params: Mapping[str, Any],
    protocol: Protocol,
    host: Host,
    interpreter: Interpreter,
    extra_env: Mapping[str, str],
) -> str:
    """The hash under which a trial is known: equal means measured already."""
    workload = str(params["workload"])
    name = (
        Path(workload).name if is_custom(workload) else workload
    )  # where a file lies is not what it computes
    identity = {
        "schema": SCHEMA_VERSION,
        "params": {**params, "workload": name},
        "protocol": asdict(protocol),
        "source": [source_hash(workload), source_hash(BUILT_IN_WORKLOAD), *_library_hashes(params)],
        "python": [*interpreter.words[:-1], interpreter.version],
        "framework": framework_versions(str(params["runtime"]), interpreter),
        "host_class": host.class_hash,
        "allocation": host.allocation_shape(),
        "environment": dict(extra_env),
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def _library_hashes(params: Mapping[str, Any]) -> list[str]:
    """The source of our own library where it is what is measured."""
    is_ours = params.get("execution") in OWN_EXECUTIONS or params.get("freezing") == "full"
    return [package_hash("corewise.dataflow")] if is_ours else []


def _ceilings(host: Host, interpreter: Interpreter) -> Ceilings | None:
    """What `corewise doctor --ceilings` has kept for this machine; it is not measured unasked.

    Damaged files are told on stderr: else nobody knows why trials have no ceilings, or old ones.
    """
    runtime = next((name for name in ("torch", "numpy") if name in interpreter.packages), "")
    version = interpreter.packages.get(runtime, "")
    kept = read_kept(default_cache(), host.class_hash, host.allocation_shape(), runtime, version)
    if kept.damage:
        files = "; ".join(" ".join(each.split()) for each in kept.damage)
        remedy = "`corewise doctor --ceilings` measures them again"
        print(f"corewise: kept ceilings were left out: {files}; {remedy}", file=sys.stderr)
    return kept.ceilings


def _place(host: Host, params: Mapping[str, Any]) -> tuple[RankPlacement, ...]:
    return place_params(host.topology, host.allocation.cpus, params)


def _work(params: Mapping[str, Any]) -> dict[str, float]:
    args = tuple((key, value) for key, value in sorted(params.items()) if key.startswith("args."))
    return dict(_cached_work(str(params["workload"]), str(params["mode"]), str(params["dtype"]), args))


@lru_cache(maxsize=1024)
def _cached_work(
    name: str, mode: str, dtype: str, arguments: tuple[tuple[str, Any], ...]
) -> dict[str, float]:
    if is_custom(name):
        return {}
    counted = work_of(find_workload(name), mode, workload_args(dict(arguments)), dtype)
    return {key: float(value) for key, value in asdict(counted).items()}
