"""A comparison as JSON for scripts: the names others rely on."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from corewise import __version__
from corewise.comparison.model import ComparedTrial, Comparison, OneSided
from corewise.comparison.sides import as_json

SCHEMA = 1


def json_lines(comparison: Comparison) -> Iterator[bytes]:
    """The comparison as one JSON object, what mars it first; line by line, since trials can be very many."""
    summary = asdict(comparison.summary)
    summary["interval"] = _interval(summary.pop("low"), summary.pop("high"))
    disturbed = summary.pop("disturbed")
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "corewise_version": __version__,
        "a": asdict(comparison.a),
        "b": asdict(comparison.b),
        "disturbed": disturbed,
        "differences": [
            {**asdict(each), "within_a": each.within_a, "within_b": each.within_b}
            for each in comparison.differences
        ],
        "summary": summary,
        "rule": asdict(comparison.rule),
        "common": dict(comparison.common),
    }
    yield b"{\n"
    for key, value in head.items():
        yield b'"%s": %s,\n' % (key.encode(), as_json(value))
    yield from _listed("trials", (_trial(trial) for trial in comparison.trials))
    for name in ("broken", "fixed", "both_failed", "only_a", "only_b"):
        yield b",\n"
        yield from _listed(name, _one_sided(getattr(comparison, name)))
    yield b"\n}\n"


def _listed(name: str, lines: Iterator[bytes]) -> Iterator[bytes]:
    yield b'"%s": [' % name.encode()
    for i, line in enumerate(lines):
        yield (b",\n" if i else b"\n") + line
    yield b"]"


def _trial(trial: ComparedTrial) -> bytes:
    return as_json(
        {
            "name": trial.name,
            "verdict": trial.verdict,
            "ratio": trial.ratio,
            "interval": _interval(trial.low, trial.high),
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


def _interval(low: float | None, high: float | None) -> list[float] | None:
    return None if low is None or high is None else [low, high]


def _one_sided(trials: Sequence[OneSided]) -> Iterator[bytes]:
    for each in trials:
        ids = [each.a_trial_id, each.b_trial_id]
        yield as_json({"name": each.name, "trial_ids": ids, "reason": each.reason})
