"""Exports a comparison as JSON for scripts; its keys are public."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from corewise import __version__
from corewise.analysis.comparison.comparison_model import ComparedTrial, OneSidedTrial, StoreComparison
from corewise.analysis.comparison.sides import dump_json

SCHEMA = 1


def iterate_json_lines(comparison: StoreComparison) -> Iterator[bytes]:
    """Yield the comparison as one JSON object, disturbances first, line by line as trials can be many."""
    summary = asdict(comparison.summary)
    summary["interval"] = _join_interval(summary.pop("low"), summary.pop("high"))
    disturbed = summary.pop("disturbed")
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "corewise_version": __version__,
        "a": asdict(comparison.a),
        "b": asdict(comparison.b),
        "disturbed": disturbed,
        "differences": [
            {**asdict(each), "within_a": each.within_a, "within_b": each.within_b} for each in comparison.differences
        ],
        "summary": summary,
        "rule": asdict(comparison.rule),
        "common": dict(comparison.common),
    }
    yield b"{\n"
    for key, value in head.items():
        yield b'"%s": %s,\n' % (key.encode(), dump_json(value))
    yield from _iterate_list("trials", (_dump_trial(trial) for trial in comparison.trials))
    for name in ("broken", "fixed", "both_failed", "only_a", "only_b"):
        yield b",\n"
        yield from _iterate_list(name, _dump_one_sided(getattr(comparison, name)))
    yield b"\n}\n"


def _iterate_list(name: str, lines: Iterator[bytes]) -> Iterator[bytes]:
    yield b'"%s": [' % name.encode()
    for i, line in enumerate(lines):
        yield (b",\n" if i else b"\n") + line
    yield b"]"


def _dump_trial(trial: ComparedTrial) -> bytes:
    return dump_json(
        {
            "name": trial.name,
            "verdict": trial.verdict,
            "ratio": trial.ratio,
            "interval": _join_interval(trial.low, trial.high),
            "undecided": trial.undecided,
            "regression": trial.regression,
            "reason": trial.reason,
            "p_value": trial.p_value,
            "adjusted_p_value": trial.adjusted_p_value,
            "effect_size": trial.effect_size,
            "effect_name": "Cliff's delta",
            "method": trial.method,
            "interleaved": trial.interleaved,
            "time_s": [trial.a_time_s, trial.b_time_s],
            "num_processes": [trial.a_num_processes, trial.b_num_processes],
            "num_disturbed": [trial.a_num_disturbed, trial.b_num_disturbed],
            "in_doubt": trial.in_doubt,
            "trial_ids": [trial.a_trial_id, trial.b_trial_id],
            "params": orjson.Fragment(trial.params_json),
        }
    )


def _join_interval(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [low, high]


def _dump_one_sided(trials: Sequence[OneSidedTrial]) -> Iterator[bytes]:
    for each in trials:
        ids = [each.a_trial_id, each.b_trial_id]
        yield dump_json({"name": each.name, "trial_ids": ids, "reason": each.reason})
