"""Runs of unfinished trials: what a record could not be computed from is refused."""

import json
from typing import Any

import pytest

from corewise.study.trial_run import TrialRun

RUN = TrialRun(
    status="ok",
    samples_s=[0.1, 0.2],
    metrics={"step_s": 0.15, "samples_per_s": 10.0, "samples_per_step": 2.0},
    disturbances=["noise"],
    ranks=[{"rank": 0, "samples_s": [0.1, 0.2]}],
)


def test_a_run_is_read_as_it_was_written() -> None:
    assert TrialRun.from_json(json.loads(json.dumps(RUN.to_json()))) == RUN


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "the run is a list, not a mapping"),
        ({}, "status is null, not ok or failed"),
        ({**RUN.to_json(), "status": "perhaps"}, "status is the text 'perhaps'"),
        ({**RUN.to_json(), "samples_s": []}, "samples_s is empty"),
        ({**RUN.to_json(), "samples_s": [0.0]}, "samples_s holds a time"),
        ({**RUN.to_json(), "metrics": {"step_s": 1.0}}, "metrics.samples_per_s is missing or not above 0"),
        ({**RUN.to_json(), "metrics": {**RUN.metrics, "loss": None}}, "metrics.loss is null"),
        ({**RUN.to_json(), "ranks": [{"samples_s": ["a"]}]}, "ranks.samples_s.0. is the text 'a'"),
        ({**RUN.to_json(), "disturbances": None}, "disturbances is null, not a list"),
    ],
)
def test_a_run_that_a_record_cannot_be_computed_from_is_refused(data: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TrialRun.from_json(data)


def test_a_failed_run_needs_no_samples() -> None:
    assert TrialRun.from_json({"status": "failed", "reason": "why", "kind": "memory"}).reason == "why"
