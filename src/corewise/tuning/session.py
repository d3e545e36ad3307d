"""One tuning from start to end: search, confirmation, cold starts, answer. It resumes an interrupted one."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol as Interface

from corewise.analysis.tuning_results import UNIT
from corewise.errors import UserError
from corewise.machine.foreign_load import measure_foreign_load
from corewise.measured.trial import Protocol
from corewise.run.cpp_build import build_once
from corewise.run.lease_heartbeat import Heartbeat
from corewise.run.study_runner import RunObserver
from corewise.store.brief_records import extract_brief
from corewise.store.leases import acquire_when_free
from corewise.store.record_reader import describe_damage
from corewise.store.store import Store
from corewise.study.durations import format_duration
from corewise.tuning.confirm.cold_start import ColdStart, start_cold
from corewise.tuning.confirm.confirmation_runs import (
    EFFORTS,
    USUAL_EFFORT,
    Confirmation,
    Role,
    build_protocols,
    choose_effort,
    confirm,
    describe_disturbed_runs,
    estimate_confirmation_s,
    is_unchecked,
    limit_default_start,
    require_budget,
    require_same_shapes,
)
from corewise.tuning.journal import Journal, JournalState
from corewise.tuning.question import Tunable
from corewise.tuning.result.answer_builder import TuningTarget, WinnerChoice, build_answer, choose_winner
from corewise.tuning.result.result_text import format_headline
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.search.arena import Rejection
from corewise.tuning.search.coordinate_search import Search
from corewise.tuning.search.judgements import Judgement, SearchState, Watcher
from corewise.tuning.search.knobs import build_hand_setting, has_native, list_good_starts
from corewise.tuning.search.live_arena import LiveArena
from corewise.tuning.search.prior_results import find_known_settings
from corewise.tuning.search.setting_space import Setting

# Shares of the budget that are reserved for the confirmation.
MIN_SHARE, FAIR_SHARE, MAX_SHARE = 0.25, 0.4, 0.6
# Time limit of a fresh run: at least this many seconds, or this multiple of the slowest start.
MIN_LIMIT_S, MAX_RUN_RATIO = 120.0, 20.0
UNCHECKED = (
    'the results of your step were not checked: return a "check" with it, so that a setting that computes '
    "something else cannot win (docs/own-workload.md)"
)
NOT_COLD = "stopped before the commands were started from cold: it is not verified that they give these figures"


class Follower(Watcher, Interface):
    """An observer of a tuning; every call comes between measurements."""

    def report_start(self, tunable: TuningTarget, budget_s: float, journal_state: JournalState) -> None: ...
    def report_phase(self, name: str) -> None: ...
    def get_observer(self) -> RunObserver: ...
    def set_unit(self, unit: str) -> None: ...
    def report_note(self, text: str) -> None: ...
    def report_fresh_run(self, setting: Setting, throughput: float) -> None: ...


class Interrupted(KeyboardInterrupt):
    """Raised when the user stops a tuning; `result` holds the best setting so far."""

    def __init__(self, result: TuneResult) -> None:
        super().__init__(f"{format_headline(result)} See `.result` for details; the same call resumes.")
        self.result = result


class Tuning:
    """One tuning of a workload: a question, a store and a budget."""

    def __init__(
        self, tunable: Tunable, store: Store, follower: Follower, *, budget_s: float, again: bool = False
    ) -> None:
        self.tunable, self.store, self.follower, self.budget_s = tunable, store, follower, budget_s
        self.journal = Journal(store, tunable.compute_key(), tunable.space)
        self.again = again
        self.journal_state = JournalState() if again else self.journal.read()
        self.hand = build_hand_setting(tunable.space)
        self.began = time.monotonic()
        self.counted_until = self.began
        self.state = SearchState(tunable.space.default)
        self.notes: list[str] = []
        # Notes that put the result in doubt; the report shows them below its headline.
        self.cautions: list[str] = []

    def run(self) -> TuneResult:
        """Return the answer; raise Interrupted with the best setting so far if the user stops it."""
        self.follower.report_start(self.tunable, self.budget_s, self.journal_state)
        try:
            with hold_host_lease(self.store, self.tunable):
                self._build_native()
                self.state = self._search()
            confirmation, choice = self._confirm()
        except KeyboardInterrupt:
            if self.tunable.space.default not in self.state.judgements:
                raise
            raise Interrupted(
                self._finish(build_answer(self.tunable, self.state, notes=self.notes, cautions=self.cautions))
            ) from None
        try:
            with hold_host_lease(self.store, self.tunable):
                cold = self._start_commands(confirmation, choice)
        except KeyboardInterrupt:
            # The answer rests on the confirmation alone, which is complete.
            self.notes.append(NOT_COLD)
            raise Interrupted(self._build_result(confirmation, choice, {})) from None
        return self._build_result(confirmation, choice, cold)

    def _build_result(
        self, confirmation: Confirmation, choice: WinnerChoice, cold: Mapping[Setting, ColdStart]
    ) -> TuneResult:
        disagreements = [
            f"{self.tunable.space.describe(setting)}: {problem}"
            for setting, each in cold.items()
            if (problem := each.explain_disagreement(confirmation.records[setting]))
        ]
        unchecked = [UNCHECKED] if is_unchecked(confirmation.records.values()) else []
        deciding = dict.fromkeys((self.tunable.space.default, choice.winner))
        disturbance = describe_disturbed_runs(confirmation.records[each] for each in deciding)
        notes = [*self.notes, *unchecked, *disagreements]
        result = build_answer(
            self.tunable,
            self.state,
            confirmation=confirmation,
            hand=self.hand,
            choice=choice,
            cold=cold,
            notes=notes,
            cautions=[*self.cautions, *([disturbance] if disturbance else [])],
            is_disturbed=bool(disturbance),
        )
        return self._finish(result)

    def _build_native(self) -> None:
        """Build the C++ kernels that some settings need; the budget starts afterwards."""
        if has_native(self.tunable.space) and self.tunable.question.runtime == "torch":
            planner = self.tunable.planner
            build_once(planner.interpreter, planner.worker, lambda: self.follower.report_phase("build"))
        self.began = self.counted_until = time.monotonic()

    def _search(self) -> SearchState:
        hostname = self.tunable.host.facts.hostname
        self.journal.clear_work(hostname)
        # The lease is held here, so no other tuning uses the journal.
        if self.again:
            self.journal_state.since = self.journal.reset()
        stored = self.store.read_records(extract_brief)
        self.notes += [f"a damaged record was skipped: {each}" for each in describe_damage(stored.damage)]
        is_busy = measure_foreign_load(self.tunable.host.allocation.cpus).is_busy
        arena = LiveArena(self.tunable, self.journal.build_work_path(hostname))
        search = Search(
            self.tunable.space,
            arena,
            JournalingWatcher(self.follower, self.journal),
            starts=tuple(
                dict.fromkeys(
                    (
                        *find_known_settings(self.tunable, stored.records),
                        *list_good_starts(self.tunable.space, self.hand, is_busy=is_busy),
                    )
                )
            ),
            bounded_latency=self.tunable.question.mode == "infer",
            earlier=self.journal_state.valid_judgements,
        )
        self.state = search.state
        finished_before = self.journal_state.finished and len(self.state.judgements) == len(
            self.journal_state.judgements
        )
        try:
            self.follower.report_phase("search")
            default = self._measure_default(search)
            if not finished_before:
                search.run(self.began + self.budget_s - self._estimate_reserve_s(default))
            else:
                search.state.finished = True
        except Rejection as problem:
            self.notes.append(f"the search ended early: its best setting did not restart: {problem.reason}")
        finally:
            arena.close()
        self.cautions += filter(None, [search.describe_noise()])
        self._record_seconds()
        return search.state

    def _record_seconds(self) -> None:
        """Record the time spent, so that a resumed call reports the total."""
        now = time.monotonic()
        self.journal.append_search_progress(finished=self.state.finished, seconds=now - self.counted_until)
        self.counted_until = now

    def _measure_default(self, search: Search) -> Judgement:
        """Measure the default; raise UserError if it does not run or the budget is too short."""
        is_begun = len(search.state.judgements) > 1 or self.journal_state.finished
        limit_s = max(self.budget_s, MIN_LIMIT_S)
        try:
            default = search.run_default(limit_s)
        except Rejection as problem:
            if problem.category == "timeout":
                raise UserError(
                    f"a budget of {format_duration(self.budget_s)} is too short: the default alone needs "
                    f"more than {format_duration(limit_s)} to start and take its first steps; "
                    "give a longer --budget"
                ) from None
            raise UserError(
                f"{self.tunable.question.name} does not run with its defaults, so it cannot be tuned: {problem.reason}"
            ) from None
        if not is_begun:
            spent_s = max(default.start_s, time.monotonic() - self.began)
            require_budget(self.budget_s, spent_s, default, format_duration(self.budget_s))
        return default

    def _estimate_reserve_s(self, default: Judgement) -> float:
        """Estimate how many seconds of the budget to reserve for the confirmation."""
        quicker = replace(default, latency_s=default.latency_s / 1.5)
        efforts_s = [
            estimate_confirmation_s(each, [default, quicker], [quicker] * 3) for each in EFFORTS[USUAL_EFFORT:]
        ]
        fair_s = FAIR_SHARE * self.budget_s
        needed_s = next((seconds for seconds in efforts_s if seconds <= fair_s), efforts_s[-1])
        return min(max(needed_s, MIN_SHARE * self.budget_s), MAX_SHARE * self.budget_s)

    def _assign_roles(self) -> dict[Setting, Role]:
        """Return the settings to confirm: default and best decide, hand setting and ladder are references."""
        space, best = self.tunable.space, self.state.best
        roles = dict.fromkeys((space.default, best), Role.CONTENDER)
        for setting in (self.hand, *space.list_steps(best)):
            if not self.state.is_rejected(setting):
                roles.setdefault(setting, Role.REFERENCE)
        return roles

    def _confirm(self) -> tuple[Confirmation, WinnerChoice]:
        self.follower.report_phase("confirm")
        roles = self._assign_roles()
        protocols, generation = self._choose_protocols(roles)
        observer = self.follower.get_observer()
        confirmation = confirm(self.tunable, self.store, observer, roles, protocols, generation)
        require_same_shapes(confirmation.records.values())
        default = confirmation.records.get(self.tunable.space.default)
        if default is None or default.status != "ok":
            reason = default.reason if default is not None else "no record"
            raise UserError(f"the default failed when measured in fresh processes: {reason}")
        return confirmation, choose_winner(self.tunable, self.state, self.hand, confirmation)

    def _choose_protocols(self, roles: Mapping[Setting, Role]) -> tuple[dict[Role, Protocol], str]:
        """Return how fresh runs are measured, and their generation.

        The choice of an interrupted call is reused, so that its runs count. Otherwise it fits the time left.
        """
        if self.journal_state.protocols and len(self.state.judgements) == len(self.journal_state.judgements):
            return self.journal_state.protocols, self.journal_state.generation
        judgements = dict(self.state.judgements)
        first = judgements.pop(self.tunable.space.default)
        default = judgements[first.setting] = limit_default_start(first, judgements.values())
        known = {setting: judgements.get(setting, default) for setting in roles}
        contenders = [known[setting] for setting, role in roles.items() if role is Role.CONTENDER]
        references = [known[setting] for setting, role in roles.items() if role is Role.REFERENCE]
        left_s = self.began + self.budget_s - time.monotonic()
        # If only the default runs, there is nothing to decide.
        has_rival = len(known) > 1
        effort = choose_effort(left_s, contenders, references) if has_rival else EFFORTS[USUAL_EFFORT]
        limit_s = max(MIN_LIMIT_S, MAX_RUN_RATIO * max(each.start_s for each in known.values()))
        generation = self.journal_state.since
        # Runs of an earlier call were not interleaved with the new ones, so they do not count.
        if self.journal_state.judgements:
            generation += f" and {len(self.state.judgements)} settings"
        protocols = build_protocols(effort, limit_s)
        self.journal.append_protocols(protocols, generation)
        return protocols, generation

    def _start_commands(self, confirmation: Confirmation, choice: WinnerChoice) -> dict[Setting, ColdStart]:
        """Start the printed commands of default and winner from cold."""
        self.follower.report_phase("cold")
        assert confirmation.plan is not None
        by_id = {trial.trial_id: trial for trial in confirmation.plan.trials}
        starts = {}
        for setting in dict.fromkeys((self.tunable.space.default, choice.winner)):
            record = confirmation.records[setting]
            starts[setting] = start_cold(confirmation.plan, by_id[record.trial_id], self.store)
            # Retry once: a single start may have been disturbed.
            if starts[setting].explain_disagreement(record):
                starts[setting] = start_cold(confirmation.plan, by_id[record.trial_id], self.store)
        return starts

    def _finish(self, result: TuneResult) -> TuneResult:
        self._record_seconds()
        seconds = self.counted_until - self.began + self.journal_state.seconds
        environment = self.tunable.question.environment
        result = replace(result, seconds=seconds, store=str(self.store.path), environment=environment)
        return record_answer(self.journal, result)


def record_answer(journal: Journal, result: TuneResult) -> TuneResult:
    """Append the result to the journal and return it with its key."""
    result = replace(result, key=journal.path.stem)
    journal.append_answer(result.study, result.to_json(), format_headline(result), result.best.command)
    return result


@contextmanager
def hold_host_lease(store: Store, tunable: TuningTarget) -> Iterator[None]:
    """Hold the lease of this host, so that no other study measures on it."""
    holder = {"study": f"tune {tunable.name}"}
    lease = acquire_when_free(store.leases_folder, f"host-{tunable.host.facts.hostname}", holder)
    heartbeat = Heartbeat(lease)
    try:
        yield
    finally:
        heartbeat.stop()
        lease.release()


class JournalingWatcher:
    """A watcher that writes judgements to the journal and passes all events on to the follower."""

    def __init__(self, follower: Follower, journal: Journal, unit: Callable[[], str] = lambda: UNIT) -> None:
        self.follower, self.journal, self.unit = follower, journal, unit

    def report_candidate(self, setting: Setting) -> None:
        self.follower.report_candidate(setting)

    def report_judgement(self, judgement: Judgement, incumbent: Setting, score: float) -> None:
        self.journal.append_judgement(judgement)
        self.follower.set_unit(self.unit())
        self.follower.report_judgement(judgement, incumbent, score)
