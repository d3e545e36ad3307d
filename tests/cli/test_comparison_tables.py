"""What the times under A and B are, said where they stand."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from corewise.cli.app import build_app

APP = build_app()

STORE = Path(__file__).parents[2] / "benchmarks/data/xeon-16-cores/store"


@pytest.mark.parametrize(("by", "per"), [("batch=4,16", "sample"), ("threads=1,2", "step")])
def test_the_note_says_whether_times_are_of_a_step_or_of_a_sample(by: str, per: str) -> None:
    arguments = ["compare", str(STORE), "--by", by, "--where", "study=thread-scaling"]
    result = CliRunner().invoke(APP, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert f"A, B: times per {per}, geometric means over processes." in result.stdout
