"""The tuning of an untouched script: only what can be set from outside, whole starts as fresh runs."""

import hashlib
import json
import random
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from corewise import __version__
from corewise.launcher.adapt import read_fingerprint
from corewise.spec.errors import UserError
from corewise.spec.record import Record, utc_now
from corewise.spec.trial import NOT_NOW
from corewise.spec.tuned import Subject, Tuned
from corewise.stats.estimate import process_interval
from corewise.store.store import Store
from corewise.tuner.answer import answer, choose
from corewise.tuner.arena import Rejected, Sampling, largest_error
from corewise.tuner.confirm import Confirmed
from corewise.tuner.durations import spoken
from corewise.tuner.found import Found, Judged
from corewise.tuner.journal import Journal, Remembered
from corewise.tuner.knobs import hand_setting
from corewise.tuner.output import measured_of
from corewise.tuner.result import UNIT, TuneResult
from corewise.tuner.script_arena import NOTES, SAMPLE_S, ScriptArena, Way
from corewise.tuner.script_check import NOT_CHECKED
from corewise.tuner.script_question import FIXABLE, OUTSIDE, ScriptTunable
from corewise.tuner.search import Search
from corewise.tuner.session import Follower, Interrupted, Kept, host_lease, kept_answer
from corewise.tuner.space import Setting

SEARCH_SHARE = 0.6
MIN_STARTS, MAX_STARTS = 3, 8
LAUNCH_S = 0.5
LIMIT_S = 600.0
HOW_TO_TELL = (
    "\nLet it print its rate (--throughput), call corewise.report_progress, or end sooner: by doing less, or "
    "within a longer --budget."
)
HOW_TO_MATCH = (
    "\nThe expression has to match a part of what the script prints: {} stands for the rate, as in "
    "'{} img/s'; signs like ( ) + * ? . need a \\ before them where they stand for themselves."
)
LEAST_LIMIT_S, LONGEST_RUN = 60.0, 20.0  # of a fresh start: seconds, and times what one takes
RUNS = "runs/s"  # of scripts that neither report nor print
CHECK_SHARE = 0.1  # of the budget, for the numbers of a start of the default
TRANSIENT = ("timeout", "exit", "error", NOT_NOW)  # rejections that another call tries again
SHARED = "all starts share the folder {}, which the command names: what one writes there, others find"


class ScriptTuning:
    """One tuning of a script; `run` gives the answer."""

    def __init__(
        self, tunable: ScriptTunable, store: Store, follower: Follower, *, budget_s: float, again: bool
    ) -> None:
        self.tunable, self.store, self.follower, self.budget_s = tunable, store, follower, budget_s
        self.journal = Journal(store, tunable.key(), tunable.space)
        self.again = again
        self.remembered = Remembered() if again else self.journal.read()
        space = tunable.space
        self.hand = hand_setting(space)
        self.began = time.monotonic()
        self.counted_until = self.began
        self.found = Found(space.default)
        self.way = Way.TURNS
        self.notes: list[str] = []
        self.run_s = 0.0  # of a whole run

    def run(self) -> TuneResult:
        """The answer; raises Interrupted with the best so far when the user stops it."""
        self.follower.began(self.tunable, self.budget_s, self.remembered)
        try:
            with host_lease(self.store, self.tunable), self._arena() as arena:
                self._search(arena)
                confirmed = self._confirm(arena)
        except KeyboardInterrupt:
            if self.tunable.space.default not in self.found.judged:
                raise
            stopped = answer(self.tunable, self.found, notes=self._notes())
            raise Interrupted(self._finished(stopped)) from None
        choice = choose(self.tunable, self.found, self.hand, confirmed)
        result = answer(
            self.tunable, self.found, confirmed=confirmed, hand=self.hand, choice=choice, notes=self._notes()
        )
        return self._finished(result)

    @contextmanager
    def _arena(self) -> Iterator[ScriptArena]:
        """Where starts work; whoever makes it holds the host's lease, for what was left there is cleared."""
        hostname = self.tunable.host.facts.hostname
        self.journal.clear_work(hostname)
        if self.again:  # only now, when nobody else works on it
            self.journal.forget()
        arena = ScriptArena(self.tunable.script, self.tunable.space, self.journal.work_folder(hostname))
        try:
            yield arena
        finally:
            self.way = arena.way  # as the default's first run has shown
            arena.close()

    def _notes(self) -> list[str]:
        """What has to be said of how the script was started and sampled."""
        script = self.tunable.script
        notes = self.notes if script.check is not None else [*self.notes, NOT_CHECKED]
        sampled = [NOTES[self.way]] if self.way in NOTES else []
        return [*notes, *sampled, *(SHARED.format(name) for name in script.shared_folders())]

    def _search(self, arena: ScriptArena) -> None:
        known = [each for each in self.remembered.judged if each.setting != self.tunable.space.default]
        earlier = [each for each in known if each.kind not in TRANSIENT]
        finished_before = self.remembered.finished and earlier == known
        search = Search(
            self.tunable.space,
            arena,
            Kept(self.follower, self.journal, lambda: RUNS if arena.by_clock else UNIT),
            starts=[self.hand],
            bounded_latency=False,
            earlier=earlier,
        )
        self.found = search.found
        self.found.finished = finished_before
        script = self.tunable.script
        if script.missing_file():
            raise UserError(
                f"there is no file {script.missing_file()} in {script.folder}; name it as it lies from there"
            )
        self.follower.phase("search")
        try:
            default = search.run_default(max(LEAST_LIMIT_S, min(LIMIT_S, self.budget_s)))
        except Rejected as problem:
            if problem.kind == "check":
                raise UserError(f"--check: the command as it was typed does not pass: {problem}") from None
            told = f"the command does not run as it is, so nothing can be tuned: {problem}"
            raise UserError(told + self._advice(problem)) from None
        self.way, self.run_s = arena.way, arena.run_s
        self._require_budget(default)
        if self.tunable.script.check is not None:
            self._require_repeatable(arena)
        if not finished_before:
            try:
                search.run(self.began + SEARCH_SHARE * self.budget_s)
            except Rejected as problem:
                self.notes.append(f"the search ended early: its best did not start again: {problem.reason}")
        search.close()
        self.notes += filter(None, [search.doubt()])
        self.way, self.run_s = arena.way, arena.run_s
        self._keep_seconds()

    def _keep_seconds(self) -> None:
        """Keep what was spent, so that a call that goes on tells the seconds of both."""
        now = time.monotonic()
        self.journal.searched(finished=self.found.finished, seconds=now - self.counted_until)
        self.counted_until = now

    def _advice(self, problem: Rejected) -> str:
        """What to do where the command does not tell how fast it is."""
        if problem.kind not in ("timeout", "error"):
            return ""
        return HOW_TO_TELL if self.tunable.script.pattern is None else HOW_TO_MATCH

    def _require_repeatable(self, arena: ScriptArena) -> None:
        """The default's own numbers must not differ from start to start by more than a candidate's may."""
        try:
            scatter = arena.compare_defaults(max(LEAST_LIMIT_S, CHECK_SHARE * self.budget_s))
        except Rejected as problem:
            raise UserError(f"--check: a second start of the command did not pass: {problem}") from None
        if scatter > arena.reference.tolerance(num_processes=1):
            raise UserError(
                f"--check: two starts of the command printed numbers that differ by {100 * scatter:.2g} %: "
                "nothing can be held to them; fix the seed of the script, or leave --check out"
            )
        arena.reference.scatter = scatter

    def _require_budget(self, default: Judged) -> None:
        spent_s = time.monotonic() - self.began
        needed_s = spent_s + 2 * MIN_STARTS * self._start_s(default)
        if needed_s > self.budget_s:
            raise UserError(
                f"a budget of {spoken(self.budget_s)} is too short: the default took {spoken(spent_s)} "
                f"to start and sample; give --budget {int(-(-needed_s // 10) * 10)}s at the least, "
                "better ten times that"
            )

    def _start_s(self, judged: Judged) -> float:
        """About what one start of a setting takes."""
        if self.way in (Way.RUNS, Way.CLOCK):
            return LAUNCH_S + self.run_s
        return LAUNCH_S + judged.start_s + SAMPLE_S + judged.latency_s

    def _confirm(self, arena: ScriptArena) -> Confirmed:
        """Every setting that matters started afresh, in turns, as often as the time left allows."""
        self.follower.phase("confirm")
        space = self.tunable.space
        wanted = (space.default, self.found.best, self.hand, *space.steps(self.found.best))
        settings = [each for each in dict.fromkeys(wanted) if not self.found.is_rejected(each)]
        default = self.found.judged[space.default]
        left_s = self.began + self.budget_s - time.monotonic()
        starts_s = {each: self._start_s(self.found.judged.get(each, default)) for each in settings}
        starts_s = fitting(starts_s, (space.default, self.found.best), left_s)
        settings = list(starts_s)
        limits_s = {each: min(LIMIT_S, max(LEAST_LIMIT_S, LONGEST_RUN * s)) for each, s in starts_s.items()}
        round_s = sum(starts_s.values())
        num_starts = int(min(MAX_STARTS, max(MIN_STARTS, left_s // max(round_s, 0.1))))
        runs: dict[Setting, list[Sampling]] = {each: [] for each in settings}
        reasons: dict[Setting, str] = {}
        dice = random.Random(self.tunable.name)
        for _ in range(num_starts):
            for setting in dice.sample(settings, len(settings)):
                if setting not in reasons:
                    try:
                        self.follower.trying(setting)
                        runs[setting].append(_fresh(arena, setting, limits_s[setting]))
                        self.follower.rated(setting, runs[setting][-1].throughput)
                    except Rejected as problem:
                        reasons[setting] = problem.reason
        records = {each: self._record(each, runs[each], reasons.get(each, "")) for each in settings}
        for record in records.values():
            self.store.append(record)
        if reasons.get(space.default):
            raise UserError(f"the command as it was typed failed in a fresh run: {reasons[space.default]}")
        return Confirmed(records)

    def _record(self, setting: Setting, runs: Sequence[Sampling], reason: str) -> Record:
        rates = [each.throughput for each in runs]
        params = self.tunable.space.params(setting)
        words = self.tunable.script.started_as(params, setting == self.tunable.space.default)
        told = hashlib.sha256(json.dumps([words, utc_now(), rates]).encode()).hexdigest()[:16]
        metrics = {}
        if rates and not reason:
            interval = process_interval(rates)
            metrics = {"samples_per_s": interval.value, "latency_p50_s": 1 / statistics.median(rates)}
            error = largest_error(each.check_error for each in runs)
            metrics |= {} if error is None else {"check_error": error}
            metrics["peak_memory_bytes"] = max(each.memory_bytes for each in runs)
            if interval.low is not None and interval.high is not None:
                metrics |= {"samples_per_s_low": interval.low, "samples_per_s_high": interval.high}
        return Record(
            trial_id=told,
            study=f"tune {self.tunable.name}",
            status="failed" if reason else "ok",
            reason=reason,
            kind="exit" if reason else "",
            params={**params, "workload": self.tunable.name, "mode": "script"},
            metrics=metrics,
            work={"whole_runs": 1.0} if self.way is Way.CLOCK else {},
            runs=tuple({"status": "ok", "metrics": {"samples_per_s": each}} for each in rates),
            command=shlex.join(words),
            machine=self.tunable.host.describe(),
            corewise_version=__version__,
            started_at=utc_now(),
            finished_at=utc_now(),
        )

    def _finished(self, result: TuneResult) -> TuneResult:
        self._keep_seconds()
        seconds = self.counted_until - self.began + self.remembered.seconds
        command = shlex.join(self.tunable.script.filled(result.best.params))
        told = replace(
            result,
            seconds=seconds,
            store=str(self.store.path),
            command=command,
            environment=self.tunable.script.variables(result.best.params),
            code={},  # all of it is set from outside, the batch by the command's own words
            unit=RUNS if self.way is Way.CLOCK else UNIT,
        )
        return kept_answer(self.journal, told)


def fitting(
    starts_s: Mapping[Setting, float], deciding: Sequence[Setting], left_s: float
) -> dict[Setting, float]:
    """All settings, or those that decide where the time left is too short for the fewest starts of all."""
    fits = MIN_STARTS * sum(starts_s.values()) <= left_s
    return {each: start_s for each, start_s in starts_s.items() if fits or each in deciding}


def tuned_of_script(tunable: ScriptTunable, result: TuneResult) -> Tuned:
    """The tuned file of a script."""
    told = OUTSIDE if tunable.script.batch is not None else FIXABLE
    params = {n: value for n, value in result.best.params.items() if n in told and value is not None}
    return Tuned(
        subject=Subject(command=tunable.script.words),
        params=params,
        machine=read_fingerprint(tunable.host.topology, tunable.host.allocation),
        measured=measured_of(result),
        environment=dict(result.environment),
        corewise_version=__version__,
        date=utc_now(),
    )


def _fresh(arena: ScriptArena, setting: Setting, limit_s: float) -> Sampling:
    entrant = arena.enter(setting, limit_s)
    try:
        sampling = entrant.sample()
        errors = (sampling.check_error, entrant.complete_check(limit_s))
        return replace(sampling, check_error=largest_error(errors))
    finally:
        entrant.leave()
