"""What a tuning leaves behind: files, answers of stopped searches, refusals of what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.tuner.confirm import require_same_shapes
from corewise.tuner.files import Files
from corewise.tuner.result import Side, Tried, TuneResult
from corewise.tuner.session import Interrupted
from corewise.tuner.words import answer_text, headline

SIDE = Side(params={}, words="default", throughput=10.0)
RESULT = TuneResult(
    name="own infer", mode="infer", batch=4, machine="2 cores", verdict="unconfirmed", default=SIDE, best=SIDE
)


def record(*shapes: str) -> Record:
    runs = tuple({"status": "ok", "ranks": [{"rank": 0, "shapes": each}]} for each in shapes)
    return Record(trial_id="0" * 16, study="tune own", status="ok", params={}, runs=runs)


def test_a_factory_whose_shapes_change_from_start_to_start_is_refused() -> None:
    require_same_shapes([record("a", "a"), record("a")])
    with pytest.raises(UserError, match=r"other shapes at every start \(a, then b\)"):
        require_same_shapes([record("a"), record("a", "b")])


def test_a_stopped_tuning_leaves_its_settings_and_says_so(tmp_path: Path) -> None:
    def stopped() -> TuneResult:
        raise Interrupted(RESULT)

    with pytest.raises(Interrupted) as caught:
        Files(tmp_path / "tuned.yaml").after(
            stopped, lambda path, result: path.write_text(result.name) and None
        )
    assert (tmp_path / "tuned.yaml").read_text() == "own infer"
    assert caught.value.result.output == str(tmp_path / "tuned.yaml")


@pytest.mark.parametrize("option", ["output", "report"])
def test_a_file_that_cannot_be_written_is_told_by_its_option(tmp_path: Path, option: str) -> None:
    with pytest.raises(UserError, match=f"--{option}"):
        Files(**{option: tmp_path / "nowhere" / "file"}).require()


def test_a_search_stopped_early_claims_nothing() -> None:
    assert headline(RESULT) == "Stopped before anything faster than the default was found."
    other = replace(RESULT, best=replace(SIDE, words="8×2"), speedup=2.0, finished=False)
    assert headline(other).startswith("Stopped. Best so far: 8×2, about 2.00× the default")
    assert "cut short by its budget" not in answer_text(other)


def test_numbers_that_are_not_finite_are_null_in_json() -> None:
    tried = Tried("bfloat16", {}, "rejected", 0.0, 0.0, 0.0, float("nan"), "wrong numbers")
    told = replace(RESULT, tried=(tried,)).to_json()
    assert told["tried"][0]["check_error"] is None
    json.dumps(told, allow_nan=False)
