"""The trial run: one execution of a trial in fresh processes, over all ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from corewise.study.value_checks import (
    BadValue,
    Check,
    check_each,
    check_fields,
    check_list,
    check_mapping,
    check_number,
    check_number_list,
    check_number_mapping,
    check_plain,
    check_plain_mapping,
    check_text,
    check_text_list,
    describe_value,
)

RUN_STATUSES = ("ok", "failed")
# No clock measures times outside of these limits, in seconds. Within them, all computed rates are finite.
MIN_TIME_S, MAX_TIME_S = 1e-12, 1e12


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """The combined result of all ranks of a run, as JSON values; `status` is one of RUN_STATUSES."""

    status: str
    reason: str = ""
    kind: str = ""
    samples_s: Sequence[float] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    disturbances: Sequence[str] = ()
    ranks: Sequence[Mapping[str, Any]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> "TrialRun":
        """Build a run from parsed JSON; unknown keys are ignored.

        Raises:
            ValueError: if a value is missing or wrong.
        """
        try:
            check_run(data)
            check_fields(data, {"metrics": check_number_mapping})
            if data.get("status") not in RUN_STATUSES:
                raise BadValue(f".status is {describe_value(data.get('status'))}, not {' or '.join(RUN_STATUSES)}")
            if data["status"] == "ok":
                _check_measured(data)
        except BadValue as error:
            raise ValueError(error.describe("the run")) from None
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


def check_run(run: Any) -> None:
    """Raise BadValue unless every field of a run has its type; a missing field is accepted."""
    check_mapping(run)
    check_fields(run, _RUN_CHECKS)


def check_runs(runs: Any) -> None:
    """Raise BadValue unless the value is a list of runs."""
    check_list(runs)
    check_each(runs, check_run)


def check_rank(rank: Any) -> None:
    """Raise BadValue unless those facts of a rank that readers use have their types."""
    check_mapping(rank)
    check_fields(rank, _RANK_CHECKS)


def check_times(times_s: Sequence[float]) -> None:
    """Raise BadValue unless there are times, all of which a clock can measure."""
    if not times_s:
        raise BadValue(" is empty")
    if not MIN_TIME_S <= min(times_s) <= max(times_s) <= MAX_TIME_S:
        raise BadValue(f" holds a time that is not between {MIN_TIME_S:g} and {MAX_TIME_S:g} s")


def _check_stored_metrics(metrics: Any) -> None:
    """Accept null as well: a record holds it for a metric of a run that was not finite."""
    try:
        check_number_mapping(metrics)
    except BadValue:
        check_mapping(metrics)
        check_number_mapping({name: value for name, value in metrics.items() if value is not None})


def _check_ranks(ranks: Any) -> None:
    check_list(ranks)
    check_each(ranks, check_rank)


def _check_measured(run: Mapping[str, Any]) -> None:
    """Check what the metrics of a record are computed from."""
    check_fields({"samples_s": [], "metrics": {}, **run}, _MEASURED_CHECKS)


def _check_rank_times(ranks: Sequence[Mapping[str, Any]]) -> None:
    for rank in ranks:
        if rank.get("samples_s"):
            check_fields(rank, {"samples_s": check_number_list})
            check_fields(rank, {"samples_s": check_times})


def _check_judged_metrics(metrics: Mapping[str, float]) -> None:
    for name in _POSITIVE_METRICS:
        if not metrics.get(name, 0.0) > 0:
            raise BadValue(f".{name} is missing or not above 0")


# Those metrics of a successful run that a record is computed from.
_POSITIVE_METRICS = ("step_s", "samples_per_s", "samples_per_step")
_MEASURED_CHECKS: Mapping[str, Check] = {
    "samples_s": check_times,
    "metrics": _check_judged_metrics,
    "ranks": _check_rank_times,
}
# Readers only export the other facts of a rank. They can be many, so they are not checked.
_RANK_CHECKS: Mapping[str, Check] = {
    "warm_up_ended": check_text,
    "versions": check_plain_mapping,
    "notes": check_text_list,
    "malleable": check_plain_mapping,
    "shapes": check_plain,
    "peak_gpu_memory_bytes": check_number,
}
_RUN_CHECKS: Mapping[str, Check] = {
    "status": check_text,
    "reason": check_text,
    "kind": check_text,
    "samples_s": check_number_list,
    "metrics": _check_stored_metrics,
    "disturbances": check_text_list,
    "ranks": _check_ranks,
}
