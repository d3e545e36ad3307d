"""Result files of ranks: what cannot be used fails the rank with a reason, and never reaches a computation."""

import json
from pathlib import Path
from typing import Any

import pytest

from corewise.measured.trial import RankResult, to_json, write_json_atomically
from corewise.run.rank_results import read_result

RESULT = RankResult(
    status="ok",
    rank=1,
    samples_s=(0.1, 0.2),
    samples_per_step=8.0,
    metrics={"window_s": 2.0, "window_samples": 40.0},
    facts={"independent": True, "versions": {"numpy": "2.4.6"}},
    notes=("a note",),
)


def read_changed(tmp_path: Path, **changes: Any) -> RankResult:
    path = tmp_path / "rank-1.json"
    path.write_text(json.dumps({**to_json(RESULT), **changes}))
    return read_result(path, 1)


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_json_atomically(tmp_path / "rank-1.json", to_json(RESULT))
    assert read_result(tmp_path / "rank-1.json", 1) == RESULT


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": 7}, "schema is 7, not 1"),
        ({"rank": 0}, "rank is 0, not 1"),
        ({"rank": True}, "rank is true, not 1"),
        ({"status": "fine"}, "status is the text 'fine', not ok or failed"),
        ({"samples_s": [0.1, float("nan")]}, "samples_s[1] is the number nan, not a finite number"),
        ({"samples_s": []}, "samples_s is empty"),
        ({"samples_s": [0.1, 0.0]}, "samples_s holds a time that is not between 1e-12 and 1e+12 s"),
        ({"samples_s": [0.1, 10**400]}, "samples_s[1] is an integer too large for a float"),
        ({"samples_s": "abc"}, "samples_s is the text 'abc', not a list"),
        ({"metrics": {"window_s": 2.0}}, "metrics.window_samples is 0.0, not a number of samples"),
        ({"metrics": {}}, "metrics.window_s holds a time that is not between"),
        ({"metrics": {"loss": None}}, "metrics.loss is null, not a finite number"),
        ({"metrics": {"loss": 1e308}}, "metrics.loss is 1e+308, which is beyond 1e+100"),
        ({"metrics": {"window_s": 2.0, "window_samples": 5e-324}}, "metrics.window_samples is 5e-324, not a number"),
        ({"samples_per_step": 0}, "samples_per_step is 0, not a number of samples"),
        ({"steps_per_sample": 1.5}, "steps_per_sample is 1.5, not a number of steps"),
        ({"facts": {"x": [float("inf")]}}, "facts.x[0] is the number inf, not a finite number"),
        ({"facts": []}, "facts is a list, not a mapping"),
        ({"notes": [None]}, "notes[0] is null, not text"),
        ({"kind": ["memory"]}, "kind is a list, not text"),
        ({"lost_peer": "no"}, "lost_peer is the text 'no', not true or false"),
    ],
)
def test_a_result_that_cannot_be_used_fails_the_rank(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    result = read_changed(tmp_path, **changes)
    assert (result.status, result.rank, result.kind) == ("failed", 1, "crash")
    assert result.reason.startswith(f"no readable result: {reason}")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000, '{"a":' * 5000, "\udc80", "9" * 5000])
def test_a_file_that_is_no_result_fails_the_rank(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank-1.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_result(path, 1).reason.startswith("no readable result: ")


def test_a_missing_file_fails_the_rank(tmp_path: Path) -> None:
    assert "No such file" in read_result(tmp_path / "rank-1.json", 1).reason


def test_a_failed_rank_needs_no_samples(tmp_path: Path) -> None:
    result = read_changed(tmp_path, status="failed", reason="why", kind="memory", samples_s=[], metrics={})
    assert (result.status, result.reason, result.kind) == ("failed", "why", "memory")
