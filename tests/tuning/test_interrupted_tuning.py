"""A tuning that is stopped or refused reports what it measured and leaves other tunings alone."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tuning.simulated_arena import SimulatedArena, build_space, refuse

from corewise.analysis.tuning_results import NO_DIFFERENCE, NOT_MEASURED
from corewise.errors import UserError
from corewise.measured.trial import NO_CHECK, NOT_NOW
from corewise.store.leases import LeaseHeld
from corewise.store.store import Store
from corewise.study.record import Record
from corewise.tuning import session
from corewise.tuning.confirm.confirmation_runs import Confirmation, Role
from corewise.tuning.journal import Journal
from corewise.tuning.result.answer_builder import build_answer, choose_winner
from corewise.tuning.result.result_text import format_headline
from corewise.tuning.scripts.script_command import Script
from corewise.tuning.scripts.script_question import build_script_tunable
from corewise.tuning.scripts.script_session import ScriptTuning
from corewise.tuning.search.judgements import Judgement, SearchState
from corewise.tuning.search.knobs import Offer
from corewise.tuning.search.setting_space import Knob, Space
from corewise.tuning.session import Interrupted, Tuning, hold_host_lease
from corewise.tuning.silent_progress import SilentProgress

TWO = build_space(a=(0, 1))
DEFAULT, BEST = (0,), (1,)
JUDGEMENTS = (Judgement(DEFAULT, "default", throughput=1.0), Judgement(BEST, "won", score=0.7, throughput=2.0))

HOST = SimpleNamespace(
    allocation=SimpleNamespace(num_cores=2), facts=SimpleNamespace(cpu_model="A CPU", hostname="here")
)


@dataclass(frozen=True)
class Target:
    """Something to tune that is never started."""

    name: str = "example"
    mode: str = "train"
    batch: int = 4
    asked: tuple[str, ...] = ()
    space: Any = TWO
    offer: Offer = Offer(TWO, ())  # noqa: RUF009
    host: Any = field(default_factory=lambda: HOST)
    question: Any = field(default_factory=lambda: SimpleNamespace(environment={"MY_FLAG": "1"}))

    def compute_key(self) -> str:
        return "0123"


def record(rate: float, check_reference: str = "float64", disturbances: tuple[str, ...] = ()) -> Record:
    more = {"ranks": [{"check_reference": check_reference}], "disturbances": list(disturbances)}
    runs = [{"status": "ok", "metrics": {"samples_per_s": rate + n / 100}, **more} for n in range(5)]
    metrics = {"samples_per_s": rate, "latency_p50_s": 1 / rate, "check_error": 0.0}
    return Record(trial_id=f"{rate}", study="tune", status="ok", metrics=metrics, runs=tuple(runs))


class StoppedTuning(Tuning):
    """A tuning that its user stops in a phase."""

    phase = "cold"
    disturbances: tuple[str, ...] = ()

    def _search(self) -> SearchState:
        self.state = SearchState(BEST, {each.setting: each for each in JUDGEMENTS}, finished=True)
        self._stop_in("search")
        self._record_seconds()
        return self.state

    def _confirm(self) -> Any:
        self._stop_in("confirm")
        return Confirmation(
            {each: record(rate, disturbances=self.disturbances) for each, rate in ((DEFAULT, 1.0), (BEST, 2.0))}
        )

    def _start_commands(self, confirmation: Any, choice: Any) -> Any:
        self._stop_in("cold")
        return {}

    def _stop_in(self, phase: str) -> None:
        if self.phase == phase:
            raise KeyboardInterrupt


@pytest.fixture
def build_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], StoppedTuning]:
    ticks = itertools.count(0.0, 10.0)
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: next(ticks)))

    def build(phase: str) -> StoppedTuning:
        tunable: Any = Target()
        tuning = StoppedTuning(tunable, Store.open(tmp_path / "store", create=True), SilentProgress(), budget_s=60.0)
        tuning.phase = phase
        return tuning

    return build


def test_stopping_after_the_fresh_runs_still_gives_their_result(build_stopped: Callable[[str], StoppedTuning]) -> None:
    with pytest.raises(Interrupted) as caught:
        build_stopped("cold").run()
    result = caught.value.result
    assert (result.verdict, result.best.label) == ("faster", "a 1")
    assert result.speedup == pytest.approx(2.0, rel=0.02)
    assert "before the commands were started from cold" in result.notes[-1]
    assert result.environment == {"MY_FLAG": "1"}


@pytest.mark.parametrize("disturbances", [(), ("other processes used 1 s",)])
def test_disturbed_fresh_runs_mark_the_result(
    build_stopped: Callable[[str], StoppedTuning], disturbances: tuple[str, ...]
) -> None:
    tuning = build_stopped("never")
    tuning.disturbances = disturbances
    result = tuning.run()
    assert result.is_disturbed is bool(disturbances)
    assert any("were disturbed" in note for note in result.notes) is bool(disturbances)


@pytest.mark.parametrize("phase", ["search", "confirm", "cold", "never"])
def test_the_time_of_a_stopped_call_counts_in_the_next(
    build_stopped: Callable[[str], StoppedTuning], phase: str
) -> None:
    try:
        before = build_stopped(phase).run().seconds
    except Interrupted as interruption:
        before = interruption.result.seconds
    after = build_stopped("never")
    assert after.journal_state.seconds == before > 0
    assert after.journal_state.finished
    assert after.run().seconds > before


def test_fresh_runs_of_an_earlier_call_count_only_without_new_judgements(tmp_path: Path) -> None:
    """Otherwise an old run of the default would be compared with a newer run of another setting."""
    roles = {DEFAULT: Role.CONTENDER, BEST: Role.CONTENDER}

    def choose_protocols(*judgements: Judgement) -> Any:
        tunable: Any = Target()
        tuning = Tuning(tunable, Store.open(tmp_path / "store", create=True), SilentProgress(), budget_s=6000.0)
        for each in judgements[len(tuning.journal_state.judgements) :]:
            tuning.journal.append_judgement(each)
        tuning.state = SearchState(BEST, {each.setting: each for each in judgements}, finished=True)
        return tuning._choose_protocols(roles)

    first = choose_protocols(JUDGEMENTS[0])
    assert choose_protocols(JUDGEMENTS[0]) == first
    later = choose_protocols(*JUDGEMENTS)
    assert later[0] == first[0]
    assert first[1] == ""
    # The generation makes these other trials.
    assert later[1] != first[1]
    assert choose_protocols(*JUDGEMENTS) == later


def test_fresh_runs_from_before_a_reset_do_not_count(tmp_path: Path) -> None:
    def choose_protocols(since: str) -> Any:
        tunable: Any = Target()
        tuning = Tuning(tunable, Store.open(tmp_path / since, create=True), SilentProgress(), budget_s=6000.0)
        tuning.journal_state.since = since
        tuning.state = SearchState(BEST, {each.setting: each for each in JUDGEMENTS}, finished=True)
        return tuning._choose_protocols({DEFAULT: Role.CONTENDER, BEST: Role.CONTENDER})

    first, second = choose_protocols("2026-11-16T05:32:44.707Z"), choose_protocols("2026-11-16T05:32:44.708Z")
    assert first[0] == second[0]
    assert (first[1], second[1]) == ("2026-11-16T05:32:44.707Z", "2026-11-16T05:32:44.708Z")


def test_a_setting_that_lacked_memory_is_tried_again(tmp_path: Path) -> None:
    journal = Journal(Store.open(tmp_path / "store", create=True), "key", TWO)
    journal.append_judgement(JUDGEMENTS[0])
    journal.append_judgement(Judgement(BEST, "rejected", category=NOT_NOW, reason="3 GiB are free", against=DEFAULT))
    assert [each.setting for each in journal.read().valid_judgements] == [DEFAULT]


@pytest.mark.parametrize(("category", "is_final"), [(NOT_NOW, False), ("memory", True)])
def test_transient_rejections_of_a_script_are_tried_again(category: str, is_final: bool, tmp_path: Path) -> None:
    script = build_script_tunable(Script(("true",), tmp_path), {}, distributed=False)
    store = Store.open(tmp_path / "store", create=True)
    other = script.space.replace_choice(script.space.default, 0, 1)
    Journal(store, script.compute_key(), script.space).append_judgement(
        Judgement(other, "rejected", category=category, reason="once")
    )
    tuning = ScriptTuning(script, store, SilentProgress(), budget_s=60.0, again=False)
    arena: Any = SimulatedArena(script.space, lambda params: refuse("exit", "no"))
    arena.failure_lines = {}
    with pytest.raises(UserError):
        tuning._search(arena)
    assert (other in tuning.state.judgements) == is_final


def test_a_refused_tuning_leaves_the_work_of_the_running_one(tmp_path: Path) -> None:
    script = build_script_tunable(Script(("true",), tmp_path), {}, distributed=False)
    store = Store.open(tmp_path / "store", create=True)
    journal = Journal(store, script.compute_key(), script.space)
    journal.append_search_progress(finished=False, seconds=1.0)
    second = ScriptTuning(script, store, SilentProgress(), budget_s=60.0, again=True)
    work = second.journal.build_work_path(script.host.facts.hostname)
    work.mkdir(parents=True)
    with hold_host_lease(store, script), pytest.raises(LeaseHeld):
        second.run()
    assert work.exists()
    assert journal.read().seconds == 1.0


@pytest.mark.parametrize(("judgements", "is_refused"), [(JUDGEMENTS[:1], True), (JUDGEMENTS, False)])
def test_a_budget_is_too_short_for_the_second_call_too(
    judgements: tuple[Judgement, ...], is_refused: bool, build_stopped: Callable[[str], StoppedTuning]
) -> None:
    tuning = build_stopped("never")
    search: Any = SimpleNamespace(
        state=SearchState(DEFAULT, {each.setting: each for each in judgements}),
        run_default=lambda limit_s: JUDGEMENTS[0],
    )
    tuning.budget_s = 1.0
    if not is_refused:
        assert tuning._measure_default(search) == JUDGEMENTS[0]
        return
    with pytest.raises(UserError, match="a budget of 1 s is too short"):
        tuning._measure_default(search)


@pytest.mark.parametrize(("reference", "error"), [("float64", 0.0), (NO_CHECK, None)])
def test_an_error_is_reported_only_if_results_were_checked(reference: str, error: float | None) -> None:
    state = SearchState(BEST, {each.setting: each for each in JUDGEMENTS}, finished=True)
    confirmation = Confirmation({DEFAULT: record(1.0, reference), BEST: record(2.0, reference)})
    result = build_answer(
        Target(), state, confirmation=confirmation, choice=choose_winner(Target(), state, BEST, confirmation)
    )
    assert (result.default.check_error, result.best.check_error) == (error, error)


def test_settings_that_all_fail_are_not_called_equal() -> None:
    failed = Judgement(BEST, "rejected", category="exit", reason="it failed (exit code 1): no data")
    confirmation = Confirmation({DEFAULT: record(1.0)})
    state = SearchState(DEFAULT, {DEFAULT: JUDGEMENTS[0], BEST: failed}, finished=True)
    choice = choose_winner(Target(), state, BEST, confirmation)
    result = build_answer(Target(), state, confirmation=confirmation, choice=choice)
    assert (result.verdict, result.found_nothing) == (NOT_MEASURED, True)
    assert format_headline(result).startswith("Nothing could be compared: the only other setting failed")
    # Wrong results are a judgement: the setting ran, and the default is better.
    state.judgements[BEST] = replace(failed, category="check", reason="wrong results")
    assert build_answer(Target(), state, confirmation=confirmation, choice=choice).verdict == NO_DIFFERENCE


def test_a_winner_of_the_search_that_fails_in_fresh_runs_is_not_called_equal() -> None:
    state = SearchState(BEST, {each.setting: each for each in JUDGEMENTS}, finished=True)
    broken = replace(record(2.0), status="failed", reason="it failed (exit code 1)", metrics={}, runs=())
    confirmation = Confirmation({DEFAULT: record(1.0), BEST: broken})
    choice = choose_winner(Target(), state, BEST, confirmation)
    result = build_answer(Target(), state, confirmation=confirmation, choice=choice)
    assert result.verdict == NOT_MEASURED
    assert format_headline(result).startswith("Nothing could be confirmed")
    assert "failed in fresh processes: it failed (exit code 1)" in " ".join(result.notes)


def test_a_script_needs_no_change_of_its_code(tmp_path: Path) -> None:
    command = ("true", "{batch_per_rank}")
    script = build_script_tunable(Script(command, tmp_path, batch=16), {}, distributed=True)
    tuning = ScriptTuning(
        script, Store.open(tmp_path / "store", create=True), SilentProgress(), budget_s=60.0, again=False
    )
    answer = build_answer(script, SearchState(script.space.default, {}))
    result = tuning._finish(replace(answer, code={"batch: 16": "batch_size=16"}))
    assert (result.command, result.code, result.environment) == ("true 16", {}, {})


def test_without_time_to_build_the_kernels_what_needs_them_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = ({"execution": "eager"}, {"execution": "eager", "freezing": "full"}, {"execution": "script"})
    space = Space({}, (Knob("execution", choices),))
    planner = SimpleNamespace(interpreter=None, worker=None)
    question = SimpleNamespace(environment={}, runtime="torch", mode="infer")
    limits_s: list[float] = []

    def build(*_: Any, limit_s: float) -> bool:
        limits_s.append(limit_s)
        return limit_s > 100

    monkeypatch.setattr(session, "build_once", build)
    excluded = {}
    for budget_s in (60.0, 600.0):
        tunable: Any = replace(Target(space=space, question=question))
        object.__setattr__(tunable, "planner", planner)
        tuning = Tuning(tunable, Store.open(tmp_path / "store", create=True), SilentProgress(), budget_s=budget_s)
        tuning._build_native()
        excluded[budget_s] = [each for each in tuning.excluded if each.applies_to(choices[1])]
    assert limits_s == [12.0, 240.0]
    assert excluded[600.0] == []
    [cause] = excluded[60.0]
    assert "give --budget 2m or more" in cause.reason
    assert not any(each.applies_to(choices[2]) for each in excluded[60.0])
