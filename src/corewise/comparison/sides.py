"""One side of a comparison: a store's records, each kept as the little that comparing needs."""

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

from corewise.comparison.selection import Condition, accepted
from corewise.spec.axes import AXES, Word
from corewise.spec.expressions import Expression
from corewise.spec.record import Record
from corewise.store.parts import Damage
from corewise.workloads.custom import is_custom

# What all trials have and few studies touch counts as given when it is missing.
DEFAULTS = {
    name: axis.default for name, axis in AXES.items() if not isinstance(axis.default, (Expression, Word))
}


class Measured(NamedTuple):
    """One trial of a side."""

    trial_id: str
    key: bytes  # equal for trials that were asked for the same
    params_json: bytes
    status: str
    reason: str
    study: str
    step_s: tuple[float, ...]  # one median per process
    sample_s: tuple[float, ...]  # the same per sample of the workload
    quiet_step_s: tuple[float, ...]  # those of processes that nothing disturbed
    quiet_sample_s: tuple[float, ...]
    samples_per_step: float
    started_s: float  # since 1970; NaN when unknown
    finished_s: float
    environment: bytes  # as JSON: many trials share one

    @property
    def params(self) -> dict[str, Any]:
        """The parameters as the record has them."""
        return read_json(self.params_json)


@dataclass(frozen=True)
class Environment:
    """What a trial ran in and by which rules."""

    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    protocol: Mapping[str, Any]
    env: Mapping[str, str]
    corewise_version: str

    @property
    def looks(self) -> tuple[int, int] | None:
        """(min_runs, max_runs) where a trial may have stopped early."""
        least, most = self.protocol.get("min_runs"), self.protocol.get("max_runs")
        if isinstance(least, int) and isinstance(most, int) and 1 <= least < most:
            return least, most
        return None


class Taken(NamedTuple):
    """A trial, and for which sides it counts."""

    trial: Measured
    counts: tuple[bool, ...]


@dataclass(frozen=True)
class Take:
    """Says what is kept of a record while a store is read, perhaps by another process; None: nothing."""

    conditions: tuple[tuple[Condition, ...], ...]  # of each side
    ignored: frozenset[str]  # parameters that differ by design

    def __call__(self, record: Record, entry: object = None) -> Taken | None:
        counts = tuple(accepted(record, each) for each in self.conditions)
        return Taken(measured(record, self.ignored), counts) if any(counts) else None


@dataclass
class Side:
    """The trials of one side, one for each thing asked for."""

    store: Path
    conditions: tuple[Condition, ...] = ()
    trials: dict[bytes, Measured] = field(default_factory=dict)
    environments: dict[bytes, Environment] = field(default_factory=dict)
    num_records: int = 0
    num_repeated: int = 0  # further records of trials that have one already
    damage: Sequence[Damage] = ()

    def add(self, trial: Measured) -> None:
        """Take in a trial; of several that were asked for the same, the last measured one counts."""
        if trial.environment not in self.environments:
            self.environments[trial.environment] = Environment(**read_json(trial.environment))
        self.num_records += 1
        known = self.trials.setdefault(trial.key, trial)
        if known is not trial:
            self.num_repeated += 1
            self.trials[trial.key] = max(known, trial, key=_standing)


def measured(record: Record, ignored: frozenset[str] = frozenset()) -> Measured:
    """What comparing needs of a record."""
    step_s, sample_s = process_times(record.runs)
    quiet_step_s, quiet_sample_s = step_s, sample_s
    if record.is_disturbed:
        quiet_step_s, quiet_sample_s = process_times(
            [run for run in record.runs if not run.get("disturbances")]
        )
    names = ("machine", "versions", "protocol", "env", "corewise_version")
    return Measured(
        trial_id=record.trial_id,
        key=trial_key(record.params, ignored),
        params_json=as_json(record.params),
        status=record.status,
        reason=record.reason,
        study=record.study,
        step_s=step_s,
        sample_s=sample_s,
        quiet_step_s=quiet_step_s,
        quiet_sample_s=quiet_sample_s,
        samples_per_step=_number(record.metrics.get("samples_per_step")),
        started_s=_moment(record.started_at),
        finished_s=_moment(record.finished_at),
        environment=_shared(as_json({name: getattr(record, name) for name in names}, sort=True)),
    )


def trial_key(params: Mapping[str, Any], ignored: frozenset[str] = frozenset()) -> bytes:
    """A short name for what was asked for, whatever study, host or version it was.

    A parameter with its usual value counts like one that is missing: an older Corewise had fewer. Where the
    file of an own workload lies is not what it computes, as in a trial's identity.
    """
    asked = {
        name: value
        for name, value in params.items()
        if DEFAULTS.get(name, ...) != value and name not in ignored
    }
    workload = str(params.get("workload", ""))
    if is_custom(workload) and "workload" in asked:
        asked["workload"] = Path(workload).name
    return hashlib.blake2b(as_json(asked, sort=True), digest_size=16).digest()


def as_json(value: Any, *, sort: bool = False) -> bytes:
    """The value as JSON."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else None)
    except TypeError:  # half a character, or a number beyond 64 bits
        return json.dumps(value, sort_keys=sort).encode("ascii")


def read_json(text: bytes) -> dict[str, Any]:
    """The mapping that `as_json` wrote."""
    try:
        found: dict[str, Any] = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = json.loads(text)
    return found


@lru_cache(maxsize=4096)
def _shared(text: bytes) -> bytes:
    """One object for equal texts: what comes from another process then holds it once."""
    return text


def process_times(runs: Sequence[Mapping[str, Any]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The median step of each good process, and the time it took for each sample."""
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


def _standing(trial: Measured) -> tuple[bool, float]:
    """A measured trial stands before a skipped one, the later before the earlier."""
    return trial.status != "skipped", -math.inf if math.isnan(trial.finished_s) else trial.finished_s


def _number(value: Any) -> float:
    """The number if it is one that a clock can give, else NaN."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return math.nan


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
