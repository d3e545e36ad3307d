"""The journal of a search: what is written comes back, damage is passed by."""

from pathlib import Path

from made_arena import space

from corewise.spec.trial import Protocol
from corewise.store.store import Store
from corewise.tuner.found import Judged
from corewise.tuner.journal import Journal
from corewise.tuner.space import Space

SPACE = space(a=(0, 1, 2), b=("x", "y"))
WON = Judged((2, 1), "won", score=0.5, half_width=0.01, throughput=40.0, latency_s=0.1, against=(0, 0))
BROKEN = Judged((1, 0), "rejected", kind="check", reason="wrong numbers", against=(0, 0))


def journal(folder: Path, of: Space = SPACE) -> Journal:
    return Journal(Store.open(folder / "store"), "key", of)


def test_what_was_judged_comes_back(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.judged(WON)
    kept.judged(BROKEN)
    kept.searched(finished=True, seconds=12.0)
    kept.chosen({"main": Protocol(min_runs=4)})
    found = journal(tmp_path).read()
    assert found.judged == [WON, BROKEN]
    assert (found.finished, found.seconds) == (True, 12.0)
    assert found.protocols == {"main": Protocol(min_runs=4)}


def test_protocols_chosen_before_more_was_judged_are_let_go(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.chosen({"main": Protocol()})
    kept.judged(WON)
    assert kept.read().protocols == {}


def test_a_torn_line_and_settings_of_other_knobs_are_passed_by(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.judged(WON)
    kept.judged(BROKEN)
    raw = kept.path.read_bytes()
    kept.path.write_bytes(raw[:-20])
    assert kept.read().judged == [WON]
    assert journal(tmp_path, space(a=(0, 1), b=("x", "y"))).read().judged == []


def test_settings_survive_another_order_of_choices(tmp_path: Path) -> None:
    journal(tmp_path).judged(WON)
    [found] = journal(tmp_path, space(a=(0, 2, 1), b=("x", "y"))).read().judged
    assert found.setting == (1, 1)


def test_a_journal_can_be_forgotten(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept.judged(WON)
    assert kept.read().since == ""
    since = kept.forget()
    found = kept.read()
    assert (found.judged, found.since) == ([], since)
    assert since  # from when on fresh runs count


def test_hosts_that_share_a_store_do_not_share_a_work_folder(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    here, there = kept.work_folder("one"), kept.work_folder("two")
    for folder in (here, there):
        folder.mkdir(parents=True)
    kept.clear_work("one")
    assert (here.exists(), there.exists()) == (False, True)


def test_protocols_of_another_version_are_chosen_anew(tmp_path: Path) -> None:
    kept = journal(tmp_path)
    kept._append(entry="chosen", protocols={"main": {"min_runs": 4, "of_tomorrow": 1}})
    kept.judged(WON)
    kept._append(entry="chosen", protocols={"main": {"min_runs": 4, "of_tomorrow": 1}})
    found = kept.read()
    assert (found.judged, found.protocols) == ([WON], {})
