"""Reads the result files of ranks; a file that cannot be used counts as a failed rank."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from corewise.measured.trial import SCHEMA_VERSION, RankResult
from corewise.study.trial_run import RUN_STATUSES, check_rank, check_times
from corewise.study.value_checks import (
    BadValue,
    Check,
    check_fields,
    check_mapping,
    check_number_list,
    check_number_mapping,
    check_plain_mapping,
    check_text,
    check_text_list,
    describe_value,
)

# Far below and above what a step can complete. They keep the computed rates above 0 and finite.
MIN_SAMPLES, MAX_SAMPLES = 1e-18, 1e18


def read_result(path: Path, rank: int) -> RankResult:
    """Read the rank's result; return a failure with the reason when there is none that can be used."""
    try:
        return parse_rank_result(json.loads(path.read_text(encoding="utf-8")), rank)
    except (OSError, ValueError, RecursionError) as problem:
        return RankResult(status="failed", rank=rank, kind="crash", reason=f"no readable result: {problem}")


def parse_rank_result(data: Any, rank: int) -> RankResult:
    """Build the result of this rank from parsed JSON.

    Raises:
        ValueError: if the data is not a result of this rank that a run can be computed from.
    """
    try:
        check_mapping(data)
        _check_identity(data, rank)
        check_fields(data, _RESULT_CHECKS)
        if data["status"] == "ok":
            _check_measured(data)
    except BadValue as error:
        raise ValueError(error.describe("the result")) from None
    values: dict[str, Any] = {each.name: data[each.name] for each in fields(RankResult) if each.name in data}
    for name in ("samples_s", "disturbances", "notes"):
        values[name] = tuple(values.get(name, ()))
    return RankResult(**values)


def _check_identity(data: Mapping[str, Any], rank: int) -> None:
    expected = {"schema": (SCHEMA_VERSION,), "rank": (rank,), "status": RUN_STATUSES}
    for name, values in expected.items():
        value = data.get(name)
        if not any(type(value) is type(each) and value == each for each in values):
            raise BadValue(f".{name} is {describe_value(value)}, not {' or '.join(map(str, values))}")


def _check_measured(data: Mapping[str, Any]) -> None:
    """Check what the metrics of a run are computed from."""
    check_fields({"samples_s": [], "metrics": {}, **data}, {"samples_s": check_times, "metrics": _check_window})


def _check_window(metrics: Mapping[str, Any]) -> None:
    check_fields({"window_s": 0.0, "window_samples": 0.0, **metrics}, _WINDOW_CHECKS)


def _check_facts(facts: Any) -> None:
    check_plain_mapping(facts)
    check_rank(facts)


def _check_num_samples(value: Any) -> None:
    if not (isinstance(value, int | float) and MIN_SAMPLES <= value <= MAX_SAMPLES):
        raise BadValue(f" is {describe_value(value)}, not a number of samples")


def _check_steps(value: Any) -> None:
    if type(value) is not int or not 0 < value <= MAX_SAMPLES:
        raise BadValue(f" is {describe_value(value)}, not a number of steps")


def _check_flag(value: Any) -> None:
    if type(value) is not bool:
        raise BadValue(f" is {describe_value(value)}, not true or false")


_WINDOW_CHECKS: Mapping[str, Check] = {
    "window_s": lambda seconds: check_times([seconds]),
    "window_samples": _check_num_samples,
}
_RESULT_CHECKS: Mapping[str, Check] = {
    "reason": check_text,
    "kind": check_text,
    "traceback": check_text,
    "samples_s": check_number_list,
    "steps_per_sample": _check_steps,
    "samples_per_step": _check_num_samples,
    "metrics": check_number_mapping,
    "facts": _check_facts,
    "disturbances": check_text_list,
    "notes": check_text_list,
    "lost_peer": _check_flag,
}
