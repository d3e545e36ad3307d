"""The answer of a tuning that ran in a job: the job writes it to the store, the submitting host prints it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corewise.submit.job_log import SCHEMA, write_json_file

_MAX_BYTES = 2**24


@dataclass(frozen=True)
class TuningAnswer:
    """What `corewise tune` prints at its end.

    Attributes:
        result: The keys of `corewise tune --json`.
    """

    text: str
    result: Mapping[str, Any]
    exit_code: int


def write_answer(store: Path, name: str, answer: TuningAnswer) -> None:
    """Write the answer of a job to the store."""
    values = {"text": answer.text, "result": dict(answer.result), "exit_code": answer.exit_code}
    write_json_file(_build_path(store, name), {"schema": SCHEMA, **values})


def read_answer(store: Path, name: str) -> TuningAnswer | None:
    """Read the answer of a job; None if there is none."""
    try:
        with open(_build_path(store, name), "rb") as file:
            values = json.loads(file.read(_MAX_BYTES))
        return TuningAnswer(str(values["text"]), dict(values["result"]), int(values["exit_code"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _build_path(store: Path, name: str) -> Path:
    return store / "jobs" / f"{name}.answer.json"
