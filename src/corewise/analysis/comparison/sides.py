"""One side of a comparison: the trials of a store, reduced to what a comparison needs."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from corewise.analysis.columns import parse_number
from corewise.analysis.comparison.selection import Condition, is_accepted
from corewise.analysis.machines import get_machine_key
from corewise.analysis.ratios import get_looks
from corewise.measured.workloads.custom import is_custom
from corewise.store.file_parts import Damage
from corewise.study.axes import AXES, Keyword
from corewise.study.record import Record
from corewise.study.syntax.expressions import Expression

# Machine, framework version and protocol.
Conditions = tuple[Any, ...]

# A missing parameter counts as having its default value.
DEFAULTS = {name: axis.default for name, axis in AXES.items() if not isinstance(axis.default, (Expression, Keyword))}


class MeasuredTrial(NamedTuple):
    """One trial of a side.

    Attributes:
        key: equal for trials with the same parameters.
        step_s: one median per process.
        sample_s: the same per sample of the workload.
        quiet_step_s: medians of undisturbed processes.
        started_s: seconds since 1970; NaN if unknown.
        environment: as JSON, because many trials share one.
    """

    trial_id: str
    key: bytes
    params_json: bytes
    status: str
    reason: str
    study: str
    step_s: tuple[float, ...]
    sample_s: tuple[float, ...]
    quiet_step_s: tuple[float, ...]
    quiet_sample_s: tuple[float, ...]
    samples_per_step: float
    started_s: float
    finished_s: float
    environment: bytes

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the record."""
        return load_json(self.params_json)


@dataclass(frozen=True)
class Environment:
    """The machine, versions, protocol and variables of a trial."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    protocol: Mapping[str, Any]
    env: Mapping[str, str]
    corewise_version: str

    @property
    def looks(self) -> tuple[int, int] | None:
        """(min_runs, max_runs) if a trial could stop early."""
        return get_looks(self.protocol)

    def get_conditions(self, trial: MeasuredTrial) -> Conditions:
        """Return machine, framework version and protocol, by which trials are grouped."""
        machine = (get_machine_key(self.machine), self.machine.get("allocation_cores"))
        version = self.versions.get(str(trial.params.get("runtime")))
        return machine, version, dump_json(self.protocol, sort=True)

    def flatten(self, trial: MeasuredTrial) -> dict[str, Any]:
        """Return the conditions of a trial by name."""
        return {
            "host": self.machine.get("hostname"),
            "allocation": self.machine.get("allocation_cores"),
            "version": self.versions.get(str(trial.params.get("runtime"))),
            **{f"protocol.{name}": value for name, value in self.protocol.items()},
        }


class SelectedTrial(NamedTuple):
    """A trial, and for each side whether it accepts the trial."""

    trial: MeasuredTrial
    accepted_by: tuple[bool, ...]


@dataclass(frozen=True)
class TrialReader:
    """Extracts a trial from a record, perhaps in another process; None if no side accepts it.

    Attributes:
        conditions: those of each side.
        ignored: parameters that differ by design.
    """

    conditions: tuple[tuple[Condition, ...], ...]
    ignored: frozenset[str]

    def __call__(self, record: Record, entry: object = None) -> SelectedTrial | None:
        accepted_by = tuple(is_accepted(record, each) for each in self.conditions)
        return SelectedTrial(extract_measurement(record, self.ignored), accepted_by) if any(accepted_by) else None


@dataclass
class ComparisonSide:
    """The trials of one side: one for each set of parameters and each condition that both sides share.

    Attributes:
        repeats: further trials with the same parameters.
        num_repeated: records that do not count because another with the same parameters does.
        distinctions: host, version and protocol by trial id, if they distinguish equal parameters.
    """

    store: Path
    conditions: tuple[Condition, ...] = ()
    trials: dict[bytes, MeasuredTrial] = field(default_factory=dict)
    repeats: dict[bytes, list[MeasuredTrial]] = field(default_factory=dict)
    environments: dict[bytes, Environment] = field(default_factory=dict)
    num_records: int = 0
    num_repeated: int = 0
    distinctions: dict[str, dict[str, Any]] = field(default_factory=dict)
    damage: Sequence[Damage] = ()

    def add(self, trial: MeasuredTrial) -> None:
        """Add a trial."""
        if trial.environment not in self.environments:
            self.environments[trial.environment] = Environment(**load_json(trial.environment))
        self.num_records += 1
        if self.trials.setdefault(trial.key, trial) is not trial:
            self.repeats.setdefault(trial.key, []).append(trial)

    def list_latest(self, key: bytes) -> dict[Conditions, MeasuredTrial]:
        """Return the last measured trial with these parameters for each set of conditions."""
        latest: dict[Conditions, MeasuredTrial] = {}
        for trial in (*([self.trials[key]] if key in self.trials else []), *self.repeats.get(key, ())):
            conditions = self.environments[trial.environment].get_conditions(trial)
            latest[conditions] = max(latest.get(conditions, trial), trial, key=get_precedence)
        return latest

    def keep(self, key: bytes, trials: Sequence[MeasuredTrial]) -> None:
        """Keep only these of the trials that share their parameters."""
        self.num_repeated += len(self.repeats.pop(key, ())) + (key in self.trials) - len(trials)
        named = [self.environments[trial.environment].flatten(trial) for trial in trials]
        names = dict.fromkeys(name for each in named for name in each)
        differing = [name for name in names if len({repr(each.get(name)) for each in named}) > 1]
        for number, (trial, values) in enumerate(zip(trials, named, strict=True)):
            # Keys of parameters are shorter than those of further trials.
            self.trials[key + number.to_bytes(4, "big") if number else key] = trial
            self.distinctions[trial.trial_id] = {name: values.get(name) for name in differing}

    def describe(self, trial: MeasuredTrial) -> dict[str, Any]:
        """Return the parameters of a trial and the conditions that distinguish it on its side."""
        return trial.params | self.distinctions.get(trial.trial_id, {})


def extract_measurement(record: Record, ignored: frozenset[str] = frozenset()) -> MeasuredTrial:
    """Extract the parts of a record that a comparison needs."""
    step_s, sample_s = get_process_times(record.runs)
    quiet_step_s, quiet_sample_s = step_s, sample_s
    if record.is_disturbed:
        quiet_step_s, quiet_sample_s = get_process_times([run for run in record.runs if not run.get("disturbances")])
    names = ("machine", "versions", "protocol", "env", "corewise_version")
    return MeasuredTrial(
        trial_id=record.trial_id,
        key=compute_trial_key(record.params, ignored),
        params_json=dump_json(record.params),
        status=record.status,
        reason=record.reason,
        study=record.study,
        step_s=step_s,
        sample_s=sample_s,
        quiet_step_s=quiet_step_s,
        quiet_sample_s=quiet_sample_s,
        samples_per_step=parse_number(record.metrics.get("samples_per_step")),
        started_s=_parse_time(record.started_at),
        finished_s=_parse_time(record.finished_at),
        environment=_share_text(dump_json({name: getattr(record, name) for name in names}, sort=True)),
    )


def compute_trial_key(params: Mapping[str, Any], ignored: frozenset[str] = frozenset()) -> bytes:
    """Compute a key of the parameters, independent of study, host and version.

    A parameter with its default value counts as missing, because older versions had fewer parameters. The
    folder of a user's workload does not count, as in the identity of a trial.
    """
    significant = {
        name: value for name, value in params.items() if DEFAULTS.get(name, ...) != value and name not in ignored
    }
    workload = str(params.get("workload", ""))
    if is_custom(workload) and "workload" in significant:
        significant["workload"] = Path(workload).name
    return hashlib.blake2b(dump_json(significant, sort=True), digest_size=16).digest()


def dump_json(value: Any, *, sort: bool = False) -> bytes:
    """Convert a value to JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:
        # Orjson rejects lone surrogates and integers beyond 64 bits.
        return json.dumps(value, sort_keys=sort).encode("ascii")


def load_json(text: bytes) -> dict[str, Any]:
    """Parse a mapping that `dump_json` wrote."""
    try:
        value: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = json.loads(text)
    return value


@lru_cache(maxsize=4096)
def _share_text(text: bytes) -> bytes:
    """Return one object for equal texts, so that trials from other processes share it."""
    return text


def get_process_times(runs: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the median step of each successful process, and its time per sample."""
    step_s, sample_s = [], []
    for run in runs:
        metrics = run.get("metrics")
        if run.get("status") != "ok" or not isinstance(metrics, (dict, Mapping)):
            continue
        step, rate = metrics.get("step_s"), metrics.get("samples_per_s")
        if isinstance(step, (float, int)) and 0 < step < math.inf:
            step_s.append(float(step))
        if isinstance(rate, (float, int)) and 0 < rate < math.inf:
            sample_s.append(1 / rate)
    return tuple(step_s), tuple(sample_s)


def get_precedence(trial: MeasuredTrial) -> tuple[bool, float]:
    """Return a key that puts measured trials after skipped ones, later ones after earlier ones."""
    return trial.status != "skipped", -math.inf if math.isnan(trial.finished_s) else trial.finished_s


def _parse_time(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
