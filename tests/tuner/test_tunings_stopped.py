"""A tuning that is stopped or refused: what it has measured is told, and nothing of another is touched."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_arena import MadeArena, refuse, space

from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.spec.trial import NO_CHECK, NOT_NOW
from corewise.store.leases import LeaseHeld
from corewise.store.store import Store
from corewise.tuner import session
from corewise.tuner.answer import answer, choose
from corewise.tuner.confirm import MAIN, Confirmed
from corewise.tuner.follow import Quiet
from corewise.tuner.found import Found, Judged
from corewise.tuner.journal import Journal
from corewise.tuner.knobs import Offer
from corewise.tuner.script import Script
from corewise.tuner.script_question import make_script
from corewise.tuner.script_session import ScriptTuning
from corewise.tuner.session import Interrupted, Tuning, host_lease

TWO = space(a=(0, 1))
DEFAULT, BEST = (0,), (1,)
JUDGED = (Judged(DEFAULT, "default", throughput=1.0), Judged(BEST, "won", score=0.7, throughput=2.0))

HOST = SimpleNamespace(
    allocation=SimpleNamespace(num_cores=2), facts=SimpleNamespace(cpu_model="A CPU", hostname="here")
)


@dataclass(frozen=True)
class Made:
    """Something to tune that nobody starts."""

    name: str = "made up"
    mode: str = "train"
    batch: int = 4
    asked: tuple[str, ...] = ()
    space: Any = TWO
    offer: Offer = Offer(TWO, ())  # noqa: RUF009
    host: Any = field(default_factory=lambda: HOST)
    question: Any = field(default_factory=lambda: SimpleNamespace(environment={"MY_FLAG": "1"}))

    def key(self) -> str:
        return "0123"


def record(rate: float, check_reference: str = "float64") -> Record:
    ranks = [{"check_reference": check_reference}]
    runs = [{"status": "ok", "metrics": {"samples_per_s": rate + n / 100}, "ranks": ranks} for n in range(5)]
    metrics = {"samples_per_s": rate, "latency_p50_s": 1 / rate, "check_error": 0.0}
    return Record(trial_id=f"{rate}", study="tune", status="ok", metrics=metrics, runs=tuple(runs))


class Stopped(Tuning):
    """One whose user stops it in a phase."""

    phase = "cold"

    def _search(self) -> Found:
        self.found = Found(BEST, {each.setting: each for each in JUDGED}, finished=True)
        self._stop_in("search")
        self._keep_seconds()
        return self.found

    def _confirm(self) -> Any:
        self._stop_in("confirm")
        confirmed = Confirmed({DEFAULT: record(1.0), BEST: record(2.0)})
        return confirmed, choose(self.tunable, self.found, BEST, confirmed)

    def _cold(self, confirmed: Any, choice: Any) -> Any:
        self._stop_in("cold")
        return {}

    def _stop_in(self, phase: str) -> None:
        if self.phase == phase:
            raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Stopped]:
    ticks = itertools.count(0.0, 10.0)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(ticks)))

    def made(phase: str) -> Stopped:
        tunable: Any = Made()
        found = Stopped(tunable, Store.open(tmp_path / "store", create=True), Quiet(), budget_s=60.0)
        found.phase = phase
        return found

    return made


def test_whoever_stops_it_after_the_fresh_runs_gets_what_they_gave(stopped: Callable[[str], Stopped]) -> None:
    with pytest.raises(Interrupted) as caught:
        stopped("cold").run()
    result = caught.value.result
    assert (result.verdict, result.best.words) == ("faster", "a 1")
    assert result.speedup == pytest.approx(2.0, rel=0.02)
    assert "before the commands were started from cold" in result.notes[-1]
    assert result.environment == {"MY_FLAG": "1"}  # for the command that is printed without a file


@pytest.mark.parametrize("phase", ["search", "confirm", "cold", "never"])
def test_the_seconds_of_a_stopped_call_count_in_the_next(
    stopped: Callable[[str], Stopped], phase: str
) -> None:
    try:
        before = stopped(phase).run().seconds
    except Interrupted as told:
        before = told.result.seconds
    after = stopped("never")
    assert after.remembered.seconds == before > 0
    assert after.remembered.finished
    assert after.run().seconds > before


def test_fresh_runs_of_an_earlier_call_count_only_where_nothing_was_judged_since(tmp_path: Path) -> None:
    """Otherwise the default of that call would stand beside a setting that was measured later."""
    roles = {DEFAULT: MAIN, BEST: MAIN}

    def chosen(*judged: Judged) -> Any:
        tunable: Any = Made()
        made = Tuning(tunable, Store.open(tmp_path / "store", create=True), Quiet(), budget_s=6000.0)
        for each in judged[len(made.remembered.judged) :]:
            made.journal.judged(each)
        made.found = Found(BEST, {each.setting: each for each in judged}, finished=True)
        return made._protocols(roles)

    first = chosen(JUDGED[0])
    assert chosen(JUDGED[0]) == first
    later = chosen(*JUDGED)
    assert later[MAIN].timeout_s != first[MAIN].timeout_s  # so that it is another trial
    assert replace(later[MAIN], timeout_s=0.0) == replace(first[MAIN], timeout_s=0.0)


def test_what_had_no_memory_then_is_tried_again(tmp_path: Path) -> None:
    kept = Journal(Store.open(tmp_path / "store", create=True), "key", TWO)
    kept.judged(JUDGED[0])
    kept.judged(Judged(BEST, "rejected", kind=NOT_NOW, reason="3 GiB are free", against=DEFAULT))
    assert [each.setting for each in kept.read().still_holding] == [DEFAULT]


@pytest.mark.parametrize(("kind", "is_kept"), [(NOT_NOW, False), ("memory", True)])
def test_what_was_not_the_settings_own_fault_is_tried_again_for_a_script(
    kind: str, is_kept: bool, tmp_path: Path
) -> None:
    script = make_script(Script(("true",), tmp_path), {}, distributed=False)
    store = Store.open(tmp_path / "store", create=True)
    other = script.space.changed(script.space.default, 0, 1)
    Journal(store, script.key(), script.space).judged(Judged(other, "rejected", kind=kind, reason="once"))
    tuning = ScriptTuning(script, store, Quiet(), budget_s=60.0, again=False)
    arena: Any = MadeArena(script.space, lambda params: refuse("exit", "no"))
    with pytest.raises(UserError):
        tuning._search(arena)
    assert (other in tuning.found.judged) == is_kept


def test_a_tuning_that_is_refused_leaves_the_work_of_the_one_that_runs(tmp_path: Path) -> None:
    script = make_script(Script(("true",), tmp_path), {}, distributed=False)
    store = Store.open(tmp_path / "store", create=True)
    kept = Journal(store, script.key(), script.space)
    kept.searched(finished=False, seconds=1.0)
    second = ScriptTuning(script, store, Quiet(), budget_s=60.0, again=True)
    work = second.journal.work_folder(script.host.facts.hostname)
    work.mkdir(parents=True)
    with host_lease(store, script), pytest.raises(LeaseHeld):
        second.run()
    assert work.exists()
    assert kept.read().seconds == 1.0


@pytest.mark.parametrize(("judged", "is_refused"), [(JUDGED[:1], True), (JUDGED, False)])
def test_a_budget_is_too_short_for_the_second_call_too(
    judged: tuple[Judged, ...], is_refused: bool, stopped: Callable[[str], Stopped]
) -> None:
    tuning = stopped("never")
    search: Any = SimpleNamespace(
        found=Found(DEFAULT, {each.setting: each for each in judged}), run_default=lambda limit_s: JUDGED[0]
    )
    tuning.budget_s = 1.0
    if not is_refused:
        assert tuning._default(search) == JUDGED[0]
        return
    with pytest.raises(UserError, match="a budget of 1 s is too short"):
        tuning._default(search)


@pytest.mark.parametrize(("reference", "error"), [("float64", 0.0), (NO_CHECK, None)])
def test_an_error_is_told_only_of_what_was_checked(reference: str, error: float | None) -> None:
    found = Found(BEST, {each.setting: each for each in JUDGED}, finished=True)
    confirmed = Confirmed({DEFAULT: record(1.0, reference), BEST: record(2.0, reference)})
    result = answer(Made(), found, confirmed=confirmed, choice=choose(Made(), found, BEST, confirmed))
    assert (result.default.check_error, result.best.check_error) == (error, error)


def test_nothing_of_a_script_is_left_for_its_code(tmp_path: Path) -> None:
    words = ("true", "{batch_per_rank}")
    script = make_script(Script(words, tmp_path, batch=16), {}, distributed=True)
    tuning = ScriptTuning(
        script, Store.open(tmp_path / "store", create=True), Quiet(), budget_s=60.0, again=False
    )
    found = answer(script, Found(script.space.default, {}))
    result = tuning._finished(replace(found, code={"batch: 16": "batch_size=16"}))
    assert (result.command, result.code, result.environment) == ("true 16", {}, {})
