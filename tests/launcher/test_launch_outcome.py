"""What a launch says and returns at its end, for outcomes made by hand."""

from pathlib import Path
from typing import Any

import pytest

from corewise.cli.launch_messages import outcome_to_json, told_changes
from corewise.launcher.outcome import Outcome, RankEnd
from corewise.launcher.ranks import Changed, RankStart
from corewise.launcher.starting import CannotStart, find_program, no_room
from corewise.spec.trial import RankPlacement


def outcome(*ends: RankEnd, **values: Any) -> Outcome:
    given = {"first_failed": None, "asked_to_end": "", "leftovers": (), "stubborn": False, "problems": ()}
    return Outcome(**{"ranks": ends, "proof": None, **given, **values})


def start(rank: int) -> RankStart:
    return RankStart(rank, ("true",), RankPlacement(cpus=(rank,)), True, {}, {})


def test_an_output_that_is_not_whole_fails_a_launch_whose_ranks_ended_well() -> None:
    failed = RankEnd(0, 10, 7, 1.0)
    assert outcome().code == 0
    assert outcome(problems=("the log files are not whole: No space left on device",)).code == 1
    assert outcome(failed, first_failed=failed, problems=("...",)).code == 7


def test_a_launch_that_was_killed_did_not_end_well() -> None:
    killed = outcome(RankEnd(1, 11, 0, 1.0), was_killed=True)
    found = outcome_to_json(killed, [start(0), start(1)], {})
    assert found["exit_code"] == 137
    unended, ended = found["ranks"]
    assert unended.keys() == ended.keys()
    assert (unended["exit_code"], unended["ended_by_us"]) == (None, True)
    assert (ended["exit_code"], ended["ended_by_us"]) == (0, False)


def test_only_variables_that_keep_env_keeps_are_said_to_be_kept() -> None:
    number = Changed("COREWISE_RANK", "9", "0")
    threads = Changed("OMP_NUM_THREADS", "7", "1")
    assert told_changes([number], ()) == ["overrides COREWISE_RANK=9 (now 0)"]
    assert told_changes([number, threads], ())[0].endswith("; --keep-env keeps yours")


def test_a_variable_that_the_user_sets_by_an_option_is_no_surprise() -> None:
    assert told_changes([Changed("TOKEN", "old", "new")], ("TOKEN",)) == []


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("", "an empty word: command not found"),
        ("python train.py", "give a command as several words"),
        ("train.py", "put `python` before it"),
        ("DEBUG=1", "put `--env DEBUG=1` before the command"),
    ],
)
def test_a_word_that_is_no_command_is_told_with_what_may_be_wrong(word: str, what: str) -> None:
    with pytest.raises(CannotStart) as raised:
        find_program(word, str(Path("/usr/bin")))
    assert raised.value.code == 127
    assert what in str(raised.value)


def test_a_rank_that_the_system_has_no_room_for_is_told_with_a_way_out() -> None:
    assert "ulimit -u" in str(no_room(3, BlockingIOError(11, "Resource temporarily unavailable")))
    assert str(no_room(3, OSError(5, "Input/output error"))).startswith(
        "rank 3 could not start: Input/output"
    )
