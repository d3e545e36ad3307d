"""The messages and exit codes of launch outcomes."""

from pathlib import Path
from typing import Any

import pytest

from corewise.cli.launching.messages import describe_overrides, outcome_to_json
from corewise.launch.launch_outcome import LaunchOutcome, RankEnd
from corewise.launch.ranks import ChangedVariable, RankStart
from corewise.launch.supervision.rank_start import StartError, build_start_error, find_program
from corewise.measured.trial import RankPlacement


def outcome(*ends: RankEnd, **values: Any) -> LaunchOutcome:
    given = {"first_failed": None, "end_signal": "", "leftovers": (), "has_survivors": False, "problems": ()}
    return LaunchOutcome(**{"ranks": ends, "proof": None, **given, **values})


def start(rank: int) -> RankStart:
    return RankStart(rank, ("true",), RankPlacement(cpus=(rank,)), True, {}, {})


def test_an_incomplete_output_fails_a_launch_whose_ranks_succeeded() -> None:
    failed = RankEnd(0, 10, 7, 1.0)
    assert outcome().code == 0
    assert outcome(problems=("the log files are incomplete: No space left on device",)).code == 1
    assert outcome(failed, first_failed=failed, problems=("...",)).code == 7


def test_a_killed_launch_fails() -> None:
    killed = outcome(RankEnd(1, 11, 0, 1.0), was_killed=True)
    found = outcome_to_json(killed, [start(0), start(1)], {})
    assert found["exit_code"] == 137
    unended, ended = found["ranks"]
    assert unended.keys() == ended.keys()
    assert (unended["exit_code"], unended["ended_by_us"]) == (None, True)
    assert (ended["exit_code"], ended["ended_by_us"]) == (0, False)


def test_keep_env_is_suggested_only_for_variables_that_it_keeps() -> None:
    number = ChangedVariable("COREWISE_RANK", "9", "0")
    threads = ChangedVariable("OMP_NUM_THREADS", "7", "1")
    assert describe_overrides([number], ()) == ["overrides COREWISE_RANK=9 (now 0)"]
    assert describe_overrides([number, threads], ())[0].endswith("; pass --keep-env to keep yours")


def test_a_variable_set_by_an_option_is_not_reported() -> None:
    assert describe_overrides([ChangedVariable("TOKEN", "old", "new")], ("TOKEN",)) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty command: command not found"),
        ("python train.py", "pass the command as separate arguments"),
        ("train.py", "put `python` before it"),
        ("DEBUG=1", "put `--env DEBUG=1` before the command"),
    ],
)
def test_a_missing_program_is_reported_with_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(StartError) as raised:
        find_program(name, str(Path("/usr/bin")))
    assert raised.value.code == 127
    assert message in str(raised.value)


def test_a_rank_that_cannot_start_is_reported_with_a_remedy() -> None:
    assert "ulimit -u" in str(build_start_error(3, BlockingIOError(11, "Resource temporarily unavailable")))
    assert str(build_start_error(3, OSError(5, "Input/output error"))).startswith(
        "rank 3 could not start: Input/output"
    )
