"""One tuning from start to end: search, confirmation, cold starts, answer. It resumes an interrupted one."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from typing import Protocol as Interface

from corewise.analysis.tuning_results import UNIT
from corewise.errors import UserError
from corewise.machine.foreign_load import measure_foreign_load
from corewise.measured.trial import Protocol
from corewise.measured.workloads.base import Traits
from corewise.run.cpp_build import build_once
from corewise.run.lease_heartbeat import Heartbeat
from corewise.run.study_runner import MIN_RUNS_AT_DEADLINE, RunObserver
from corewise.store.brief_records import extract_brief
from corewise.store.leases import acquire_when_free
from corewise.store.record_reader import describe_damage
from corewise.store.store import Store
from corewise.study.durations import format_duration
from corewise.study.record import Record
from corewise.tuning.confirm.cold_start import ColdStart, start_cold
from corewise.tuning.confirm.confirmation_runs import (
    EFFORTS,
    USUAL_EFFORT,
    Confirmation,
    ConfirmationEffort,
    Role,
    build_protocols,
    choose_effort,
    confirm,
    describe_disturbed_runs,
    estimate_cold_start_s,
    estimate_confirmation_s,
    estimate_least_budget_s,
    is_unchecked,
    limit_default_start,
    require_budget,
    require_same_shapes,
)
from corewise.tuning.confirm.race_agreement import describe_disagreement
from corewise.tuning.journal import Journal, JournalState, parse_traits
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
from corewise.tuning.search.rejection_causes import RejectionCause
from corewise.tuning.search.setting_space import Setting

# Shares of the budget that are reserved for the confirmation.
MIN_SHARE, FAIR_SHARE, MAX_SHARE = 0.25, 0.4, 0.6
# While nothing is better than the default, there is nothing to confirm, and the search leaves only this share.
LEAST_SHARE = 0.05
# Time limit of a fresh run: at least this many seconds, or this multiple of the slowest start, within the budget.
MIN_LIMIT_S, MAX_RUN_RATIO, MIN_RUN_LIMIT_S = 120.0, 20.0, 10.0
# The default may exceed the budget by this factor, so that the message can say how long it took.
DEFAULT_LIMIT = 1.1
# The C++ build gets this share of the budget if that is enough for the usual build. Otherwise it gets the seconds
# that it takes to find an earlier build.
BUILD_SHARE, USUAL_BUILD_S, FIND_BUILD_S = 0.4, 45.0, 12.0
# What runs on the C++ kernels.
NATIVE_VALUES: tuple[Mapping[str, Any], ...] = (
    {"execution": "malleable"},
    {"execution": "fast-kernels"},
    {"execution": "eager", "freezing": "full"},
)
NOT_BUILT = (
    "its C++ kernels are not built yet, and this budget is too short to build them; build them once with "
    "`python -m corewise.accelerate.kernels`, or give --budget {}m or more"
)
UNCHECKED = (
    'the results of your step were not checked: return a "check" with it, so that a setting that computes '
    "something else cannot win (docs/own-workload.md)"
)
REPEATED = "the first fresh runs disagreed with the search, so they were repeated; the figures are those of the repeat"
NO_TIME_FOR_COLD = "{}: the budget left no time to start its command from cold, so that is not verified"
NOT_COLD = "stopped before the commands were started from cold: it is not verified that they give these figures"


class Follower(Watcher, Interface):
    """An observer of a tuning; every call comes between measurements."""

    def report_start(self, tunable: TuningTarget, budget_s: float, journal_state: JournalState) -> None: ...
    def report_model(self, tunable: TuningTarget, traits: Traits) -> None: ...
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
    """One tuning of a workload: a question, a store and a budget.

    The budget counts from `run` on. Each part gets the time that is left for it: the C++ build, the default, each
    candidate, the fresh runs and the cold starts. What would end too late is left out, with a note.
    """

    def __init__(
        self, tunable: Tunable, store: Store, follower: Follower, *, budget_s: float, again: bool = False
    ) -> None:
        self.tunable, self.store, self.follower, self.budget_s = tunable, store, follower, budget_s
        self.journal = Journal(store, tunable.compute_key(), tunable.space)
        self.again = again
        self.began = time.monotonic()
        self.counted_until = self.began
        self.hand = build_hand_setting(tunable.space)
        self.state = SearchState(tunable.space.default)
        traits = None if again else self.journal.read().traits
        if traits is not None:
            self._adopt_traits(traits)
        self.journal_state = JournalState() if again else self.journal.read()
        self.arena: LiveArena | None = None
        # Other processes use the CPUs of the allocation.
        self.is_busy = False
        # Values that are not tried, with the reason.
        self.excluded: list[RejectionCause] = []
        self.notes: list[str] = []
        # Notes that put the result in doubt; the report shows them below its headline.
        self.cautions: list[str] = []

    def run(self) -> TuneResult:
        """Return the answer; raise Interrupted with the best setting so far if the user stops it."""
        self.follower.report_start(self.tunable, self.budget_s, self.journal_state)
        self.began = self.counted_until = time.monotonic()
        try:
            return self._run()
        finally:
            if self.arena is not None:
                self.arena.close()

    def _run(self) -> TuneResult:
        try:
            with hold_host_lease(self.store, self.tunable):
                self._build_native()
                self.state = self._search()
            confirmation = self._confirm()
        except KeyboardInterrupt:
            if self.tunable.space.default not in self.state.judgements:
                raise
            raise Interrupted(self._build_unconfirmed()) from None
        if confirmation is None:
            return self._build_unconfirmed(is_cut=True)
        confirmation, choice = self._settle_disagreement(confirmation)
        try:
            with hold_host_lease(self.store, self.tunable):
                cold = self._start_commands(confirmation, choice)
        except KeyboardInterrupt:
            # The answer rests on the confirmation alone, which is complete.
            self.notes.append(NOT_COLD)
            raise Interrupted(self._build_result(confirmation, choice, {})) from None
        return self._build_result(confirmation, choice, cold)

    @property
    def _left_s(self) -> float:
        """Seconds until the budget is used up."""
        return self.began + self.budget_s - time.monotonic()

    def _adopt_traits(self, traits: Traits) -> None:
        """Continue with the knobs that apply to a model with these traits."""
        self.tunable = self.tunable.adopt_traits(traits)
        self.journal.space = self.tunable.space
        self.hand = build_hand_setting(self.tunable.space)
        self.state = SearchState(self.tunable.space.default)

    def _build_unconfirmed(self, *, is_cut: bool = False) -> TuneResult:
        """Build the answer of the search alone, because the user or the budget ended it."""
        default = self.state.judgements[self.tunable.space.default]
        spent_s = time.monotonic() - self.began
        result = build_answer(self.tunable, self.state, notes=self.notes, cautions=self.cautions)
        needed_s = max(estimate_least_budget_s(default.start_s, default), math.ceil(1.5 * spent_s / 10) * 10)
        return self._finish(replace(result, is_cut=is_cut, least_budget_s=float(needed_s)))

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
        """Build the C++ kernels that some settings need; leave these out if there is no time for it."""
        if not has_native(self.tunable.space) or self.tunable.question.runtime != "torch":
            return
        planner = self.tunable.planner
        # Finding an earlier build takes seconds.
        share_s = BUILD_SHARE * self.budget_s
        limit_s = share_s if share_s >= USUAL_BUILD_S else FIND_BUILD_S
        if not build_once(
            planner.interpreter, planner.worker, lambda: self.follower.report_phase("build"), limit_s=limit_s
        ):
            reason = NOT_BUILT.format(math.ceil(USUAL_BUILD_S / BUILD_SHARE / 60))
            self.excluded = [RejectionCause(values, reason) for values in NATIVE_VALUES]

    def _search(self) -> SearchState:
        hostname = self.tunable.host.facts.hostname
        self.journal.clear_work(hostname)
        # The lease is held here, so no other tuning uses the journal.
        if self.again:
            self.journal_state.since = self.journal.reset()
        stored = self.store.read_records(extract_brief)
        self.notes += [f"a damaged record was skipped: {each}" for each in describe_damage(stored.damage)]
        self.is_busy = measure_foreign_load(self.tunable.host.allocation.cpus).is_busy
        self.arena = LiveArena(self.tunable, self.journal.build_work_path(hostname))
        self.arena.deadline = self.began + DEFAULT_LIMIT * self.budget_s
        search = self._build_search(self.arena, stored.records)
        try:
            self.follower.report_phase("search")
            default = self._measure_default(search)
            if self.tunable.asks_model and self.arena.traits:
                traits = parse_traits(self.arena.traits)
                self.journal.append_traits(traits)
                self._adopt_traits(traits)
                self.arena.tunable, before = self.tunable, search
                self.follower.report_model(self.tunable, traits)
                search = self._build_search(self.arena, stored.records)
                search.take_over(before)
            if self._is_finished_before():
                search.state.finished = True
            else:
                self._run_search(search, default)
        except Rejection as problem:
            self.notes.append(f"the search ended early: its best setting did not restart: {problem.reason}")
        finally:
            search.close()
        self.cautions += filter(None, [search.describe_noise()])
        self._record_seconds()
        return search.state

    def _run_search(self, search: Search, default: Judgement) -> None:
        """Search until the time that fresh runs need; without a winner, they are left less and less time."""
        end = self.began + self.budget_s
        search.run(end - self._estimate_reserve_s(default), stays_open=True)
        for reserve_s in (self._estimate_least_reserve_s(default, default), LEAST_SHARE * self.budget_s):
            if self.state.best == self.tunable.space.default and not self.state.finished:
                search.run(end - reserve_s, until_won=True, stays_open=True)

    def _build_search(self, arena: LiveArena, records: Sequence[Record]) -> Search:
        known = find_known_settings(self.tunable, records)
        good = list_good_starts(self.tunable.space, self.hand, is_busy=self.is_busy)
        search = Search(
            self.tunable.space,
            arena,
            JournalingWatcher(self.follower, self.journal),
            starts=tuple(dict.fromkeys((*known, *good))),
            bounded_latency=self.tunable.question.mode == "infer",
            earlier=self.journal_state.valid_judgements,
        )
        search.causes.found.extend(self.excluded)
        self.state = search.state
        return search

    def _is_finished_before(self) -> bool:
        """Return whether an earlier call has completed the search."""
        earlier = self.journal_state
        return earlier.finished and len(self.state.judgements) == len(earlier.judgements)

    def _record_seconds(self) -> None:
        """Record the time spent, so that a resumed call reports the total."""
        now = time.monotonic()
        self.journal.append_search_progress(finished=self.state.finished, seconds=now - self.counted_until)
        self.counted_until = now

    def _measure_default(self, search: Search) -> Judgement:
        """Measure the default; raise UserError if it does not run, or not within the budget."""
        is_begun = len(search.state.judgements) > 1 or self.journal_state.finished
        limit_s = max(1.0, self.began + DEFAULT_LIMIT * self.budget_s - time.monotonic())
        try:
            default = search.run_default(limit_s)
        except Rejection as problem:
            if problem.category == "timeout":
                raise UserError(
                    f"a budget of {format_duration(self.budget_s)} is too short: the default alone needs "
                    f"more than {format_duration(limit_s)} to start and take its first steps; "
                    f"give --budget {format_duration(5 * self.budget_s)} or more"
                ) from None
            raise UserError(
                f"{self.tunable.question.name} does not run with its defaults, so it cannot be tuned: {problem.reason}"
            ) from None
        if not is_begun:
            require_budget(self.budget_s, max(default.start_s, time.monotonic() - self.began), default)
        return default

    def _estimate_reserve_s(self, default: Judgement) -> float:
        """Estimate how many seconds of the budget to reserve for the confirmation."""
        quicker = replace(default, latency_s=default.latency_s / 1.5)
        efforts_s = [
            estimate_confirmation_s(each, [default, quicker], [quicker] * 3) for each in EFFORTS[USUAL_EFFORT:]
        ]
        efforts_s.append(estimate_confirmation_s(EFFORTS[-1], [default, quicker], [], starts_cold=False))
        fair_s = FAIR_SHARE * self.budget_s
        needed_s = next((seconds for seconds in efforts_s if seconds <= fair_s), efforts_s[-1])
        return min(max(needed_s, MIN_SHARE * self.budget_s), MAX_SHARE * self.budget_s)

    def _estimate_least_reserve_s(self, *contenders: Judgement) -> float:
        """Estimate how many seconds two fresh runs of each contender take."""
        least = replace(EFFORTS[-1], num_contender_runs=MIN_RUNS_AT_DEADLINE)
        return estimate_confirmation_s(least, contenders, [], starts_cold=False)

    def _assign_roles(self) -> dict[Setting, Role]:
        """Return the settings to confirm: default and best decide, hand setting and ladder are references."""
        space, best = self.tunable.space, self.state.best
        roles = dict.fromkeys((space.default, best), Role.CONTENDER)
        for setting in (self.hand, *space.list_steps(best)):
            if not self.state.is_rejected(setting):
                roles.setdefault(setting, Role.REFERENCE)
        return roles

    def _confirm(self) -> Confirmation | None:
        """Measure in fresh processes; return None if the budget allows too few of them."""
        roles = self._assign_roles()
        # Two fresh runs of each side are the least that shows a difference.
        contenders = [setting for setting, role in roles.items() if role is Role.CONTENDER]
        known = self._find_judgements(dict.fromkeys(contenders, Role.CONTENDER))
        if self._estimate_least_reserve_s(*known.values()) > self._left_s:
            return None
        self.follower.report_phase("confirm")
        confirmation = self._run_fresh(roles, *self._choose_protocols(roles))
        require_same_shapes(confirmation.records.values())
        default = confirmation.records.get(self.tunable.space.default)
        is_late = self._left_s < 0
        if default is None or (default.status != "ok" and is_late and default.kind == "timeout"):
            return None
        if default.status != "ok":
            raise UserError(f"the default failed when measured in fresh processes: {default.reason}")
        return confirmation if self.state.best in confirmation.records or not is_late else None

    def _run_fresh(
        self, roles: Mapping[Setting, Role], protocols: Mapping[Role, Protocol], generation: str
    ) -> Confirmation:
        return confirm(
            self.tunable,
            self.store,
            self.follower.get_observer(),
            roles,
            protocols,
            generation,
            parents=self.arena,
            deadline=self.began + self.budget_s,
        )

    def _settle_disagreement(self, confirmation: Confirmation) -> tuple[Confirmation, WinnerChoice]:
        """Choose the winner; if race and fresh runs disagree, measure fresh runs again as far as there is time."""
        space = self.tunable.space
        choice = choose_winner(self.tunable, self.state, self.hand, confirmation)
        disagreement = describe_disagreement(space, self.state, confirmation)
        if not disagreement:
            return confirmation, choice
        roles = dict.fromkeys((space.default, self.state.best), Role.CONTENDER)
        contenders = list(self._find_judgements(roles).values())
        first: WinnerChoice | None = None
        if estimate_confirmation_s(EFFORTS[-1], contenders, [], starts_cold=False) <= self._left_s:
            self.follower.report_phase("disagree")
            effort = choose_effort(self._left_s, contenders, [], EFFORTS)
            generation = f"{self.journal_state.since} again after {confirmation.records[space.default].trial_id}"
            again = self._run_fresh(roles, build_protocols(effort, max(MIN_RUN_LIMIT_S, self._left_s)), generation)
            if all(each in again.records for each in roles):
                first, confirmation = choice, again
                choice = choose_winner(self.tunable, self.state, self.hand, again)
                disagreement = describe_disagreement(space, self.state, again)
        if disagreement:
            choice = choice.resolve_disagreement(disagreement, first, space.default)
            if choice.winner != space.default:
                self.cautions.append(f"search and fresh runs disagree: {disagreement}")
        elif first is not None:
            self.cautions.append(REPEATED)
        return confirmation, choice

    def _choose_protocols(self, roles: Mapping[Setting, Role]) -> tuple[dict[Role, Protocol], str]:
        """Return how fresh runs are measured, and their generation.

        The choice of an interrupted call is reused, so that its runs count. Otherwise it fits the time left.
        """
        if self.journal_state.protocols and len(self.state.judgements) == len(self.journal_state.judgements):
            return self.journal_state.protocols, self.journal_state.generation
        effort = self._choose_effort(roles)
        slowest_s = max(each.start_s for each in self._find_judgements(roles).values())
        limit_s = min(max(MIN_LIMIT_S, MAX_RUN_RATIO * slowest_s), max(MIN_RUN_LIMIT_S, self.budget_s))
        generation = self.journal_state.since
        # Runs of an earlier call were not interleaved with the new ones, so they do not count.
        if self.journal_state.judgements:
            generation += f" and {len(self.state.judgements)} settings"
        protocols = build_protocols(effort, limit_s)
        self.journal.append_protocols(protocols, generation)
        return protocols, generation

    def _find_judgements(self, roles: Mapping[Setting, Role]) -> dict[Setting, Judgement]:
        """Return the judgements of the settings; a setting that was not raced gets that of the default."""
        judgements = dict(self.state.judgements)
        first = judgements.pop(self.tunable.space.default)
        default = judgements[first.setting] = limit_default_start(first, judgements.values())
        return {setting: judgements.get(setting, default) for setting in roles}

    def _choose_effort(self, roles: Mapping[Setting, Role]) -> ConfirmationEffort:
        known = self._find_judgements(roles)
        contenders = [known[setting] for setting, role in roles.items() if role is Role.CONTENDER]
        references = [known[setting] for setting, role in roles.items() if role is Role.REFERENCE]
        # If only the default runs, there is nothing to decide.
        efforts = EFFORTS if len(known) > 1 else EFFORTS[USUAL_EFFORT:]
        return choose_effort(self._left_s, contenders, references, efforts)

    def _start_commands(self, confirmation: Confirmation, choice: WinnerChoice) -> dict[Setting, ColdStart]:
        """Start the printed commands of default and winner from cold, as far as the budget allows."""
        assert confirmation.plan is not None
        by_id = {trial.trial_id: trial for trial in confirmation.plan.trials}
        starts: dict[Setting, ColdStart] = {}
        settings = dict.fromkeys((choice.winner, self.tunable.space.default))
        known = self._find_judgements(dict.fromkeys(settings, Role.CONTENDER))
        for setting in settings:
            expected_s = estimate_cold_start_s(EFFORTS[-1], known[setting])
            if expected_s > self._left_s:
                self.notes.append(NO_TIME_FOR_COLD.format(self.tunable.space.describe(setting)))
                continue
            if not starts:
                self.follower.report_phase("cold")
            record = confirmation.records[setting]
            trial = by_id[record.trial_id]
            starts[setting] = start_cold(confirmation.plan, trial, self.store, limit_s=self._left_s + expected_s)
            # Retry once: a single start may have been disturbed.
            if starts[setting].explain_disagreement(record) and expected_s <= self._left_s:
                starts[setting] = start_cold(confirmation.plan, trial, self.store, limit_s=self._left_s + expected_s)
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
