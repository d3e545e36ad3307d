"""One tuning from beginning to end: search, fresh runs, cold starts, answer; goes on where one stopped."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol as Interface

from corewise.engine.heartbeat import Heartbeat
from corewise.engine.native_part import build_once
from corewise.engine.run import Observer
from corewise.spec.errors import UserError
from corewise.spec.trial import Protocol
from corewise.store.leases import acquire
from corewise.store.store import Store
from corewise.tuner.answer import Answerable, Choice, answer, choose
from corewise.tuner.arena import Rejected
from corewise.tuner.cold import ColdStart, start_cold
from corewise.tuner.confirm import (
    BESIDE,
    EFFORTS,
    MAIN,
    USUAL,
    Confirmed,
    confirm,
    doubt_by_others,
    effort_s,
    fitting_effort,
    is_unchecked,
    limit_since,
    once_warm,
    protocols_for,
    require_budget,
    require_same_shapes,
)
from corewise.tuner.durations import spoken
from corewise.tuner.found import Found, Judged, Watcher
from corewise.tuner.journal import Journal, Remembered
from corewise.tuner.knobs import good_starts, hand_setting, has_native
from corewise.tuner.known import known_settings
from corewise.tuner.live import LiveArena
from corewise.tuner.question import Tunable
from corewise.tuner.result import UNIT, TuneResult
from corewise.tuner.search import Search
from corewise.tuner.space import Setting
from corewise.tuner.words import headline

LEAST_SHARE, FAIR_SHARE, MOST_SHARE = 0.25, 0.4, 0.6  # of the budget, set aside for fresh runs
LEAST_LIMIT_S, LONGEST_RUN = 120.0, 20.0  # of a fresh run: seconds, and times the default's start
UNCHECKED = (
    'the numbers of your step were not checked: return a "check" beside it, and a setting that computes '
    "something else cannot win (docs/own-workload.md)"
)
NOT_COLD = "stopped before the commands were started from cold: whether they give the same was not looked at"


class Follower(Watcher, Interface):
    """Who follows a tuning."""

    def began(self, tunable: Answerable, budget_s: float, remembered: Remembered) -> None: ...
    def phase(self, name: str) -> None: ...
    def observer(self) -> Observer: ...
    def counts_in(self, unit: str) -> None: ...
    def rated(self, setting: Setting, throughput: float) -> None: ...


class Interrupted(KeyboardInterrupt):
    """A tuning was stopped by its user; the best so far is in `result`."""

    def __init__(self, result: TuneResult) -> None:
        super().__init__(f"{headline(result)} `.result` of this has the whole; the same call goes on.")
        self.result = result


class Tuning:
    """A question, a store and a budget; `run` gives the answer."""

    def __init__(
        self, tunable: Tunable, store: Store, follower: Follower, *, budget_s: float, again: bool = False
    ) -> None:
        self.tunable, self.store, self.follower, self.budget_s = tunable, store, follower, budget_s
        self.journal = Journal(store, tunable.key(), tunable.space)
        self.again = again
        self.remembered = Remembered() if again else self.journal.read()
        self.hand = hand_setting(tunable.space)
        self.began = time.monotonic()
        self.counted_until = self.began
        self.found = Found(tunable.space.default)
        self.notes: list[str] = []

    def run(self) -> TuneResult:
        """The answer; raises Interrupted with the best so far when the user stops it."""
        self.follower.began(self.tunable, self.budget_s, self.remembered)
        try:
            with host_lease(self.store, self.tunable):
                self._build()
                self.found = self._search()
            confirmed, choice = self._confirm()
        except KeyboardInterrupt:
            if self.tunable.space.default not in self.found.judged:
                raise
            raise Interrupted(self._finished(answer(self.tunable, self.found, notes=self.notes))) from None
        try:
            with host_lease(self.store, self.tunable):
                cold = self._cold(confirmed, choice)
        except KeyboardInterrupt:  # all that is claimed has been measured
            self.notes.append(NOT_COLD)
            raise Interrupted(self._answered(confirmed, choice, {})) from None
        return self._answered(confirmed, choice, cold)

    def _answered(
        self, confirmed: Confirmed, choice: Choice, cold: Mapping[Setting, ColdStart]
    ) -> TuneResult:
        disagreements = [
            f"{self.tunable.space.words(setting)}: {told}"
            for setting, each in cold.items()
            if (told := each.disagreement(confirmed.records[setting]))
        ]
        unchecked = [UNCHECKED] if is_unchecked(confirmed.records.values()) else []
        deciding = dict.fromkeys((self.tunable.space.default, choice.winner))
        doubt = doubt_by_others(confirmed.records[each] for each in deciding)
        notes = [*self.notes, *([doubt] if doubt else []), *unchecked, *disagreements]
        result = answer(
            self.tunable,
            self.found,
            confirmed=confirmed,
            hand=self.hand,
            choice=choice,
            cold=cold,
            notes=notes,
        )
        return self._finished(result)

    def _build(self) -> None:
        """What some settings need is there before anything is timed; the budget begins afterwards."""
        if has_native(self.tunable.space) and self.tunable.question.runtime == "torch":
            planner = self.tunable.planner
            build_once(planner.interpreter, planner.worker, lambda: self.follower.phase("build"))
        self.began = self.counted_until = time.monotonic()

    def _search(self) -> Found:
        hostname = self.tunable.host.facts.hostname
        self.journal.clear_work(hostname)
        if self.again:  # only now, when nobody else works on it
            self.remembered.since = self.journal.forget()
        arena = LiveArena(self.tunable, self.journal.work_folder(hostname))
        search = Search(
            self.tunable.space,
            arena,
            Kept(self.follower, self.journal),
            starts=tuple(
                dict.fromkeys(
                    (*known_settings(self.tunable, self.store), *good_starts(self.tunable.space, self.hand))
                )
            ),
            bounded_latency=self.tunable.question.mode == "infer",
            earlier=self.remembered.still_holding,
        )
        self.found = search.found
        finished_before = self.remembered.finished and len(self.found.judged) == len(self.remembered.judged)
        try:
            self.follower.phase("search")
            default = self._default(search)
            if not finished_before:
                search.run(self.began + self.budget_s - self._set_aside_s(default))
            else:
                search.found.finished = True
        except Rejected as problem:  # of the best so far, when it had to be started again
            self.notes.append(f"the search ended early: its best did not start again: {problem.reason}")
        finally:
            arena.close()
        self.notes += filter(None, [search.doubt()])
        self._keep_seconds()
        return search.found

    def _keep_seconds(self) -> None:
        """Keep what was spent, so that a call that goes on tells the seconds of both."""
        now = time.monotonic()
        self.journal.searched(finished=self.found.finished, seconds=now - self.counted_until)
        self.counted_until = now

    def _default(self, search: Search) -> Judged:
        """The default's first figures; a UserError where it does not run, or the budget is too short."""
        is_begun = len(search.found.judged) > 1 or self.remembered.finished
        limit_s = max(self.budget_s, LEAST_LIMIT_S)
        try:
            default = search.run_default(limit_s)
        except Rejected as problem:
            if problem.kind == "timeout":
                raise UserError(
                    f"a budget of {spoken(self.budget_s)} is too short: the default alone needs more than "
                    f"{spoken(limit_s)} to start and take its first steps; give a longer --budget"
                ) from None
            raise UserError(
                f"{self.tunable.question.name} does not run as it is, so nothing can be tuned: "
                f"{problem.reason}"
            ) from None
        if not is_begun:
            spent_s = max(default.start_s, time.monotonic() - self.began)
            require_budget(self.budget_s, spent_s, default, spoken(self.budget_s))
        return default

    def _set_aside_s(self, default: Judged) -> float:
        """Seconds of the budget kept for the fresh runs."""
        quicker = replace(default, latency_s=default.latency_s / 1.5)
        efforts_s = [effort_s(each, [default, quicker], [quicker] * 3) for each in EFFORTS[USUAL:]]
        fair_s = FAIR_SHARE * self.budget_s
        needed_s = next((seconds for seconds in efforts_s if seconds <= fair_s), efforts_s[-1])
        return min(max(needed_s, LEAST_SHARE * self.budget_s), MOST_SHARE * self.budget_s)

    def _roles(self) -> dict[Setting, str]:
        """The settings to measure anew: two decide, the hand setting and the ladder's steps stand beside."""
        space, best = self.tunable.space, self.found.best
        roles = dict.fromkeys((space.default, best), MAIN)
        for setting in (self.hand, *space.steps(best)):
            if not self.found.is_rejected(setting):
                roles.setdefault(setting, BESIDE)
        return roles

    def _confirm(self) -> tuple[Confirmed, Choice]:
        self.follower.phase("confirm")
        roles = self._roles()
        confirmed = confirm(self.tunable, self.store, self.follower.observer(), roles, self._protocols(roles))
        require_same_shapes(confirmed.records.values())
        default = confirmed.records.get(self.tunable.space.default)
        if default is None or default.status != "ok":
            reason = default.reason if default is not None else "no record"
            raise UserError(f"the default failed when measured in fresh processes: {reason}")
        return confirmed, choose(self.tunable, self.found, self.hand, confirmed)

    def _protocols(self, roles: Mapping[Setting, str]) -> dict[str, Protocol]:
        """As an earlier call chose them, so that its runs count; else what fits into the time left."""
        if self.remembered.protocols and len(self.found.judged) == len(self.remembered.judged):
            return self.remembered.protocols
        judged = dict(self.found.judged)
        first = judged.pop(self.tunable.space.default)
        default = judged[first.setting] = once_warm(first, judged.values())
        known = {setting: judged.get(setting, default) for setting in roles}
        main = [known[setting] for setting, role in roles.items() if role == MAIN]
        beside = [known[setting] for setting, role in roles.items() if role == BESIDE]
        left_s = self.began + self.budget_s - time.monotonic()
        effort = (
            fitting_effort(left_s, main, beside) if len(known) > 1 else EFFORTS[USUAL]
        )  # nothing to decide
        limit_s = max(LEAST_LIMIT_S, LONGEST_RUN * max(each.start_s for each in known.values()))
        mark = self.remembered.since
        if self.remembered.judged:  # runs of an earlier call were not beside those that come now
            mark += f" and {len(self.found.judged)} settings"
        protocols = protocols_for(effort, limit_since(mark, limit_s))
        self.journal.chosen(protocols)
        return protocols

    def _cold(self, confirmed: Confirmed, choice: Choice) -> dict[Setting, ColdStart]:
        """The printed commands of default and winner, each started once from cold."""
        self.follower.phase("cold")
        assert confirmed.plan is not None
        by_id = {trial.trial_id: trial for trial in confirmed.plan.trials}
        found = {}
        for setting in dict.fromkeys((self.tunable.space.default, choice.winner)):
            record = confirmed.records[setting]
            found[setting] = start_cold(confirmed.plan, by_id[record.trial_id], self.store)
            if found[setting].disagreement(record):  # once more: a single start may have been disturbed
                found[setting] = start_cold(confirmed.plan, by_id[record.trial_id], self.store)
        return found

    def _finished(self, result: TuneResult) -> TuneResult:
        self._keep_seconds()
        seconds = self.counted_until - self.began + self.remembered.seconds
        environment = self.tunable.question.environment
        told = replace(result, seconds=seconds, store=str(self.store.path), environment=environment)
        return kept_answer(self.journal, told)


def kept_answer(journal: Journal, result: TuneResult) -> TuneResult:
    """The result, once the journal has it."""
    result = replace(result, key=journal.path.stem)
    journal.answered(result.study, result.to_json(), headline(result), result.best.command)
    return result


@contextmanager
def host_lease(store: Store, tunable: Answerable) -> Iterator[None]:
    """Nobody else measures on this host meanwhile."""
    who = {"study": f"tune {tunable.name}"}
    lease = acquire(store.leases_folder, f"host-{tunable.host.facts.hostname}", who)
    beating = Heartbeat(lease)
    try:
        yield
    finally:
        beating.stop()
        lease.release()


class Kept:
    """Passes on what a search tells, and keeps it."""

    def __init__(self, follower: Follower, journal: Journal, unit: Callable[[], str] = lambda: UNIT) -> None:
        self.follower, self.journal, self.unit = follower, journal, unit

    def trying(self, setting: Setting) -> None:
        self.follower.trying(setting)

    def judged(self, found: Judged, incumbent: Setting, score: float) -> None:
        self.journal.judged(found)
        self.follower.counts_in(self.unit())
        self.follower.judged(found, incumbent, score)
