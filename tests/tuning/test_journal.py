"""The journal of a tuning: entries are read back, damaged ones are skipped."""

from pathlib import Path
from typing import Any

import pytest
from tests.store.edited_records import seal_by_hand
from tests.tuning.simulated_arena import build_space

from corewise.measured.trial import Protocol
from corewise.store.store import Store
from corewise.tuning.confirm.confirmation_runs import Role
from corewise.tuning.journal import Journal
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.setting_space import Space

SPACE = build_space(a=(0, 1, 2), b=("x", "y"))
WON = Judgement((2, 1), "won", score=0.5, half_width=0.01, throughput=40.0, latency_s=0.1, against=(0, 0))
BROKEN = Judgement((1, 0), "rejected", category="check", reason="wrong numbers", against=(0, 0))


def open_journal(folder: Path, space: Space = SPACE) -> Journal:
    return Journal(Store.open(folder / "store"), "key", space)


def test_judgements_are_read_back(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_judgement(WON)
    journal.append_judgement(BROKEN)
    journal.append_search_progress(finished=True, seconds=12.0)
    journal.append_protocols({Role.CONTENDER: Protocol(min_runs=4)}, "2026-11-18")
    state = open_journal(tmp_path).read()
    assert state.judgements == [WON, BROKEN]
    assert (state.finished, state.seconds) == (True, 12.0)
    assert (state.protocols, state.generation) == ({Role.CONTENDER: Protocol(min_runs=4)}, "2026-11-18")


def test_protocols_are_discarded_after_a_new_judgement(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_protocols({Role.CONTENDER: Protocol()})
    journal.append_judgement(WON)
    assert journal.read().protocols == {}


def test_a_torn_line_and_settings_of_other_knobs_are_skipped(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_judgement(WON)
    journal.append_judgement(BROKEN)
    raw = journal.path.read_bytes()
    journal.path.write_bytes(raw[:-20])
    assert journal.read().judgements == [WON]
    assert open_journal(tmp_path, build_space(a=(0, 1), b=("x", "y"))).read().judgements == []


def test_settings_survive_another_order_of_choices(tmp_path: Path) -> None:
    open_journal(tmp_path).append_judgement(WON)
    [judgement] = open_journal(tmp_path, build_space(a=(0, 2, 1), b=("x", "y"))).read().judgements
    assert judgement.setting == (1, 1)


def test_a_journal_can_be_reset(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_judgement(WON)
    assert journal.read().since == ""
    since = journal.reset()
    state = journal.read()
    assert (state.judgements, state.since) == ([], since)
    assert since


def test_hosts_that_share_a_store_do_not_share_a_work_folder(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    first, second = journal.build_work_path("one"), journal.build_work_path("two")
    for folder in (first, second):
        folder.mkdir(parents=True)
    journal.clear_work("one")
    assert (first.exists(), second.exists()) == (False, True)


def test_protocols_of_another_version_are_discarded(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal._append(entry="chosen", protocols={"contender": {"min_runs": 4, "new_field": 1}})
    journal.append_judgement(WON)
    journal._append(entry="chosen", protocols={"contender": {"min_runs": 4, "new_field": 1}})
    state = journal.read()
    assert (state.judgements, state.protocols) == ([WON], {})


NAN, HUGE = float("nan"), 10**400


@pytest.mark.parametrize(
    "entry",
    [
        {"entry": "judged"},
        {"entry": "judged", "setting": ["a"], "outcome": "won"},
        {"entry": "judged", "setting": {"a": 1, "b": "x"}},
        {"entry": "judged", "setting": {"a": 1, "b": "x"}, "outcome": ["won"]},
        {"entry": "judged", "setting": {"a": 1, "b": "x"}, "outcome": "won", "score": NAN},
        {"entry": "judged", "setting": {"a": 1, "b": "x"}, "outcome": "won", "throughput": HUGE},
        {"entry": "judged", "setting": {"a": 1, "b": "x"}, "outcome": "won", "against": 7},
        {"entry": "searched", "finished": True, "seconds": HUGE},
        {"entry": "searched", "finished": True, "seconds": "long"},
        {"entry": "chosen", "protocols": []},
        {"entry": "chosen", "protocols": {"contender": None}},
        {"entry": "chosen", "protocols": {"contender": {"min_runs": "four"}}},
        {"entry": "chosen", "protocols": {"contender": {"min_runs": 9, "max_runs": 2}}},
        {"entry": "chosen", "protocols": {"winner": {}}},
        {"entry": ["judged"]},
        {"date": 3},
    ],
    ids=str,
)
def test_entries_of_another_version_or_hand_are_skipped(tmp_path: Path, entry: dict[str, Any]) -> None:
    journal = open_journal(tmp_path)
    journal.append_judgement(WON)
    with open(journal.path, "ab") as file:
        file.write(seal_by_hand({"schema": 1, **entry}))
    journal.append_judgement(BROKEN)
    state = open_journal(tmp_path).read()
    assert state.judgements == [WON, BROKEN]
    assert (state.finished, state.seconds, state.protocols) == (False, 0.0, {})
