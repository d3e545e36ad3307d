"""Plans a study on a machine: the trials to run and the points that are infeasible here.

Planning starts the interpreter of the study to read its versions, unless `probe` is False: it then runs
nothing, and some ids may be unknown.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from corewise.cache_folder import find_cache_folder
from corewise.launch.environment import build_trial_environment
from corewise.launch.ranks import place_trial_ranks
from corewise.launch.worker_archive import build_worker
from corewise.machine.ceilings.cache import read_cached_ceilings
from corewise.machine.ceilings.table import Ceilings
from corewise.machine.core_classes import describe_core_classes
from corewise.machine.placement import PlacementError
from corewise.machine.software import find_install_hint
from corewise.measured.parameters import TrialParameters
from corewise.measured.trial import RankPlacement, Trial
from corewise.measured.workloads.base import Workload, count_work
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.registry import WORKLOADS, find_workload
from corewise.run.identity.trial_identity import compute_trial_identity, hash_user_sources, read_code_versions
from corewise.run.interpreter_files import read_interpreter_files
from corewise.run.machine_view import (
    PRELOADABLE,
    Host,
    Interpreter,
    build_interpreter_command,
    build_interpreter_environment,
    build_machine_view,
    find_preloadable_libraries,
    probe_interpreter,
    read_host,
)
from corewise.study.environment_trust import require_trusted_environment
from corewise.study.planning.expansion import expand_study
from corewise.study.study import Study


@dataclass(frozen=True)
class SkippedTrial:
    """A point that is infeasible on this machine, with the reason; its id is empty if unknown."""

    trial_id: str
    params: Mapping[str, Any]
    reason: str
    code_versions: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything that a run needs; `ceilings` are those cached for this machine, if any.

    A plan that ran nothing may have trials with an empty id: `explain_unknown_id` says why. `unread_workloads`
    are those of other packages, which were not imported. `num_nodes` counts the nodes of the run.
    """

    study: Study
    host: Host
    interpreter: Interpreter
    worker: Path
    trials: tuple[Trial, ...]
    skipped: tuple[SkippedTrial, ...]
    num_excluded: int
    ceilings: Ceilings | None = None
    unread_workloads: frozenset[str] = frozenset()
    num_nodes: int = 1

    def explain_unknown_id(self, params: Mapping[str, Any]) -> str:
        """Explain why the id of a trial is unknown; empty if it is known."""
        return _explain_unknown_id(params, self.interpreter, self.unread_workloads)

    def describe_cores(self, trial: Trial) -> str:
        """Describe the types of cores of a trial on a hybrid processor; empty if it has only the fastest."""
        return describe_core_classes(self.host.topology, self.host.allocation.cpus, trial.ranks)


def plan_study(
    study: Study,
    host: Host | None = None,
    *,
    probe: bool = True,
    trust_environment: bool = False,
    num_nodes: int | None = 1,
) -> Plan:
    """Plan a study on this machine, or on nodes like the host; see `Planner.from_study`."""
    planner = Planner.from_study(study, host, probe=probe, trust_environment=trust_environment)
    return replace(planner, num_nodes=num_nodes).plan(study)


@dataclass(frozen=True)
class Planner:
    """Plans studies for one machine and interpreter, which are read once; a plan then takes milliseconds."""

    host: Host
    interpreter: Interpreter
    worker: Path
    libraries: Mapping[str, Path]
    ceilings: Ceilings | None = None
    # Whether code of the study and of other packages may run.
    probe: bool = True
    # How many nodes the run has; None if that is decided later.
    num_nodes: int | None = 1

    @classmethod
    def from_study(
        cls, study: Study, host: Host | None = None, *, probe: bool = True, trust_environment: bool = False
    ) -> "Planner":
        """Create the planner for this machine and the interpreter that the study asks for.

        Args:
            probe: Whether to start the interpreter and to import workloads of other packages. Otherwise both
                are read from files only.
            trust_environment: Whether the study may set any environment variable.

        Raises:
            UserError: The interpreter cannot be started, or its environment is not trusted.
        """
        command = build_interpreter_command(study)
        if probe:
            require_trusted_environment(study.environment, str(study.path), is_trusted=trust_environment)
        host = host or read_host()
        worker = build_worker()
        if probe:
            interpreter = probe_interpreter(command, worker, study.environment)
        else:
            interpreter = read_interpreter_files(command, build_interpreter_environment(study.environment))
        libraries = find_preloadable_libraries(interpreter)
        return cls(host, interpreter, worker, libraries, _read_ceilings(host, interpreter), probe)

    def plan(self, study: Study, generation: str = "") -> Plan:
        """Plan a study that uses the same interpreter and environment.

        A new `generation` gives the trials new ids, so they are measured again.
        """
        hints = {name: find_install_hint(name) for name in PRELOADABLE}
        view = replace(build_machine_view(self.host, self.libraries), num_nodes=self.num_nodes)
        find = None if self.probe else _find_without_import
        expansion = expand_study(study, view, find_workload=find, hints=hints)
        sources = hash_user_sources(study.workloads)
        unread = frozenset() if self.probe else frozenset(filter(_is_of_other_package, study.workloads))
        identify = _Identifier(study, self.host, self.interpreter, generation, sources, unread)
        trials: list[Trial] = []
        skipped = [identify.skip(point.params, point.reason) for point in expansion.skipped]
        for point in expansion.points:
            params = TrialParameters.from_mapping(point.params)
            try:
                ranks = _place_ranks(self.host, params)
            except PlacementError as problem:
                skipped.append(identify.skip(point.params, str(problem)))
                continue
            trials.append(self._build_trial(identify, params, ranks))
        return Plan(
            study,
            self.host,
            self.interpreter,
            self.worker,
            tuple(trials),
            tuple(skipped),
            expansion.num_excluded,
            self.ceilings,
            unread,
            self.num_nodes or 1,
        )

    def _build_trial(self, identify: "_Identifier", params: TrialParameters, ranks: tuple[RankPlacement, ...]) -> Trial:
        study, mapping = identify.study, params.to_mapping()
        return Trial(
            trial_id=identify.compute_id(mapping),
            params=params,
            protocol=study.protocol,
            ranks=ranks,
            env=build_trial_environment(params, self.libraries, study.environment),
            python=self.interpreter.command,
            work={} if params.workload in identify.unread_workloads else _compute_work(params),
            code_versions=identify.read_versions(mapping),
            generation=identify.generation,
        )


@dataclass(frozen=True)
class _Identifier:
    """Computes the ids of the points of one plan."""

    study: Study
    host: Host
    interpreter: Interpreter
    generation: str
    # Fingerprints of the user's files, each read once.
    sources: Mapping[str, str]
    unread_workloads: frozenset[str]

    def read_versions(self, params: Mapping[str, Any]) -> dict[str, int | str]:
        return read_code_versions(params, self.sources)

    def compute_id(self, params: Mapping[str, Any]) -> str:
        """Compute the id of a point; empty if it is unknown."""
        if _explain_unknown_id(params, self.interpreter, self.unread_workloads):
            return ""
        return compute_trial_identity(
            params,
            self.study.protocol,
            self.host,
            self.interpreter,
            self.study.environment,
            self.read_versions(params),
            self.generation,
        )

    def skip(self, params: Mapping[str, Any], reason: str) -> SkippedTrial:
        return SkippedTrial(self.compute_id(params), params, reason, self.read_versions(params))


def _explain_unknown_id(params: Mapping[str, Any], interpreter: Interpreter, unread: frozenset[str]) -> str:
    if params["workload"] in unread:
        return f"{params['workload']} is a workload of another package, which was not imported"
    return interpreter.problem


def _is_of_other_package(workload: str) -> bool:
    return not is_custom(workload) and WORKLOADS.find_version(workload) is None


def _find_without_import(name: str) -> Workload | None:
    """Find a built-in workload; None for one of another package, whose code is not imported."""
    if _is_of_other_package(name) and name in WORKLOADS.list_names():
        return None
    return find_workload(name)


def _read_ceilings(host: Host, interpreter: Interpreter) -> Ceilings | None:
    """Read the ceilings that `corewise doctor --ceilings` has cached for this machine, if any.

    Unusable files are reported on stderr, since they explain missing or outdated ceilings.
    """
    runtime = next((name for name in ("torch", "numpy") if name in interpreter.packages), "")
    version = interpreter.packages.get(runtime, "")
    cached = read_cached_ceilings(
        find_cache_folder(), host.class_hash, host.compute_allocation_shape(), runtime, version
    )
    if cached.problems:
        files = "; ".join(" ".join(each.split()) for each in cached.problems)
        remedy = "`corewise doctor --ceilings` measures them again"
        print(f"corewise: ignored unusable ceiling files: {files}; {remedy}", file=sys.stderr)
    return cached.ceilings


def _place_ranks(host: Host, params: TrialParameters) -> tuple[RankPlacement, ...]:
    """Place the ranks on each node; all nodes are taken to be like this one until they are reached."""
    return place_trial_ranks(host.topology, host.allocation.cpus, params) * params.nodes


def _compute_work(params: TrialParameters) -> dict[str, float]:
    arguments = tuple(sorted(params.arguments.items()))
    return dict(_count_work(params.workload, params.mode.value, params.dtype.value, arguments))


@lru_cache(maxsize=1024)
def _count_work(name: str, mode: str, dtype: str, arguments: tuple[tuple[str, Any], ...]) -> dict[str, float]:
    if is_custom(name):
        return {}
    counted = count_work(find_workload(name), mode, dict(arguments), dtype)
    return {key: float(value) for key, value in asdict(counted).items()}
