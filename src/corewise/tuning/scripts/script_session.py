"""The tuning of an unmodified script: knobs that can be set from outside, confirmed by fresh starts."""

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
from corewise.analysis.tuning_results import UNIT
from corewise.errors import UserError
from corewise.launch.tuned_file_fit import read_fingerprint
from corewise.machine.foreign_load import measure_foreign_load
from corewise.measured.trial import NOT_NOW
from corewise.run.warm_parent import describe_leftovers
from corewise.stats.estimate import estimate_process_median
from corewise.store.store import Store
from corewise.study.durations import format_duration
from corewise.study.record import Record, format_utc_now
from corewise.study.tuned_file import TunedSettings, TuningSubject
from corewise.tuning.confirm.confirmation_runs import Confirmation
from corewise.tuning.journal import Journal, JournalState
from corewise.tuning.result.answer_builder import build_answer, choose_winner
from corewise.tuning.result.tuned_file_output import build_measured
from corewise.tuning.result.tuning_result import TuneResult
from corewise.tuning.scripts.output_check import NOT_CHECKED
from corewise.tuning.scripts.script_arena import NOTES, SAMPLE_S, SamplingMethod, ScriptArena
from corewise.tuning.scripts.script_question import FIXABLE, OUTSIDE, ScriptTunable
from corewise.tuning.search.arena import Rejection, Sampling, find_largest_error
from corewise.tuning.search.coordinate_search import Search
from corewise.tuning.search.judgements import Judgement, SearchState
from corewise.tuning.search.knobs import build_hand_setting, list_hand_starts
from corewise.tuning.search.setting_space import Setting
from corewise.tuning.session import Follower, Interrupted, JournalingWatcher, hold_host_lease, record_answer

SEARCH_SHARE = 0.6
MIN_STARTS, MAX_STARTS = 3, 8
LAUNCH_S = 0.5
LIMIT_S = 600.0
REPORT_RATE_ADVICE = (
    "\nIf the script prints its speed, say how: --throughput '{} img/s' for a rate, --step-time 'time {}ms' for the "
    "time of a step. Otherwise call corewise.report_progress in it, shorten the run, or give a longer --budget."
)
NOT_RECOGNISED = (
    "no rate was recognised in the output, so whole runs were timed. If it prints its speed, say how: --throughput "
    "'{} img/s' for a rate, --step-time 'time {}ms' for the time of a step"
)
# Numbers that are rounded by more than this, relative to their value, hide differences that matter.
MAX_RESOLUTION = 0.02
MATCH_ADVICE = (
    "\nThe regular expression must match a part of the output: {} stands for the number, as in '{} img/s'. "
    "Write \\ before literal characters like ( ) + * ? and ."
)
# Time limit of a fresh start: at least this many seconds, or this multiple of its estimated duration.
MIN_LIMIT_S, MAX_RUN_RATIO = 60.0, 20.0
# Unit of scripts that neither report progress nor print a rate.
RUNS = "runs/s"
# Share of the budget for reading the numbers of a second start of the default.
CHECK_SHARE = 0.1
# Rejections that a later call tries again.
TRANSIENT = ("timeout", "exit", "error", NOT_NOW)
SHARED = "all starts share the folder {}: files that one start writes there affect others"


class ScriptTuning:
    """One tuning of a script."""

    def __init__(
        self, tunable: ScriptTunable, store: Store, follower: Follower, *, budget_s: float, again: bool
    ) -> None:
        self.tunable, self.store, self.follower, self.budget_s = tunable, store, follower, budget_s
        self.journal = Journal(store, tunable.compute_key(), tunable.space)
        self.again = again
        self.journal_state = JournalState() if again else self.journal.read()
        space = tunable.space
        self.hand = build_hand_setting(space)
        self.began = time.monotonic()
        self.counted_until = self.began
        self.state = SearchState(space.default)
        self.method = SamplingMethod.PAUSED
        self.unit, self.throughput_source = UNIT, ""
        self.shared_folders: Sequence[str] = ()
        self.failure_lines: Mapping[str, Sequence[str]] = {}
        self.notes: list[str] = []
        self.cautions: list[str] = []
        # Seconds of a whole run.
        self.run_s = 0.0

    def run(self) -> TuneResult:
        """Return the result; raise Interrupted with the best setting so far if the user stops it."""
        self.follower.report_start(self.tunable, self.budget_s, self.journal_state)
        try:
            with hold_host_lease(self.store, self.tunable), self._open_arena() as arena:
                self._search(arena)
                confirmation = self._confirm(arena)
        except KeyboardInterrupt:
            if self.tunable.space.default not in self.state.judgements:
                raise
            stopped = build_answer(self.tunable, self.state, notes=self._collect_notes(), cautions=self.cautions)
            raise Interrupted(self._finish(stopped)) from None
        choice = choose_winner(self.tunable, self.state, self.hand, confirmation)
        result = build_answer(
            self.tunable,
            self.state,
            confirmation=confirmation,
            hand=self.hand,
            choice=choice,
            notes=self._collect_notes(),
            cautions=self.cautions,
        )
        return self._finish(result)

    @contextmanager
    def _open_arena(self) -> Iterator[ScriptArena]:
        """Open the arena and remove what killed tunings left; the caller holds the host's lease."""
        hostname = self.tunable.host.facts.hostname
        self.journal.clear_work(hostname)
        # The lease is held here, so no other tuning uses the journal.
        if self.again:
            self.journal.reset()
        arena = ScriptArena(self.tunable.script, self.tunable.space, self.journal.build_work_path(hostname))
        try:
            yield arena
        finally:
            self._read_arena(arena)
            self.failure_lines = dict(arena.failure_lines)
            arena.close()

    def _read_arena(self, arena: ScriptArena) -> None:
        """Keep how the script was sampled."""
        self.method, self.run_s, self.unit = arena.method, arena.run_s, self._name_unit(arena)
        self.throughput_source = arena.source.name if arena.source else ""
        self.shared_folders = [str(each) for each in arena.tree.visible_shared] if arena.tree else []

    def _name_unit(self, arena: ScriptArena) -> str:
        """Name the unit of throughput; steps count as their samples if the batch is known."""
        if arena.is_timed:
            return RUNS
        if arena.source is None or (arena.unit.counts_steps and self.tunable.script.batch is not None):
            return UNIT
        return f"{arena.unit.noun}/s"

    def _note_source(self, arena: ScriptArena) -> None:
        """Note what the throughput is read from, if no option says it."""
        if arena.is_timed:
            lines = " | ".join(arena.unrecognised[-3:])
            self.notes.append(NOT_RECOGNISED + (f". Its last lines: {lines}" if lines else ""))
        elif arena.source is not None and not arena.source.option:
            self.notes.append(f"throughput was read from its output, recognised as: {arena.source.name}")
        else:
            return
        self.follower.report_note(self.notes[-1])

    def _collect_notes(self) -> list[str]:
        """Collect the notes on how the script was started and sampled."""
        script = self.tunable.script
        notes = self.notes if script.check is not None else [*self.notes, NOT_CHECKED]
        sampled = [NOTES[self.method]] if self.method in NOTES else []
        shared = [SHARED.format(f"{name}, which the command names") for name in script.list_shared_folders()]
        shared += [SHARED.format(f"{name}, which has too many files for copies") for name in self.shared_folders]
        if script.workdir is not None:
            shared.append(f"all starts ran in {script.workdir}: files that one start writes affect others")
        return [*notes, *sampled, *shared]

    def _search(self, arena: ScriptArena) -> None:
        known = [each for each in self.journal_state.judgements if each.setting != self.tunable.space.default]
        earlier = [each for each in known if each.category not in TRANSIENT]
        finished_before = self.journal_state.finished and earlier == known
        is_busy = measure_foreign_load(self.tunable.host.allocation.cpus).is_busy
        search = Search(
            self.tunable.space,
            arena,
            JournalingWatcher(self.follower, self.journal, lambda: self._name_unit(arena)),
            starts=list_hand_starts(self.tunable.space, self.hand, is_busy=is_busy),
            bounded_latency=False,
            earlier=earlier,
        )
        self.state = search.state
        self.state.finished = finished_before
        script = self.tunable.script
        if script.find_missing_file():
            raise UserError(f"{script.find_missing_file()} does not exist in {script.folder}; give its path from there")
        self.follower.report_phase("search")
        try:
            default = search.run_default(max(MIN_LIMIT_S, min(LIMIT_S, self.budget_s)))
        except Rejection as problem:
            if problem.category == "unit":
                raise UserError(str(problem)) from None
            if problem.category == "check":
                raise UserError(f"--check: the command fails the check as typed: {problem}") from None
            message = f"the command does not run as typed, so it cannot be tuned: {problem}"
            lines = "".join(f"\n  | {line}" for line in arena.failure_lines.get(problem.reason, ()))
            raise UserError(message + lines + self._suggest_remedy(problem)) from None
        self._read_arena(arena)
        self._note_source(arena)
        self._require_budget(default)
        if self.tunable.script.check is not None:
            self._require_repeatable(arena)
        if not finished_before:
            try:
                search.run(self.began + SEARCH_SHARE * self.budget_s)
            except Rejection as problem:
                self.notes.append(f"the search ended early: its best setting did not restart: {problem.reason}")
        search.close()
        self.cautions += filter(None, [search.describe_noise()])
        if arena.resolution > MAX_RESOLUTION:
            self.cautions.append(
                f"the script rounds its numbers by up to {100 * arena.resolution:.1g} %, which hides smaller "
                "differences: print more digits"
            )
        self._read_arena(arena)
        self._record_seconds()

    def _record_seconds(self) -> None:
        """Record the time spent, so that a resumed call reports the total."""
        now = time.monotonic()
        self.journal.append_search_progress(finished=self.state.finished, seconds=now - self.counted_until)
        self.counted_until = now

    def _suggest_remedy(self, problem: Rejection) -> str:
        """Suggest what to do if the command does not report its throughput."""
        if problem.category not in ("timeout", "error"):
            return ""
        return REPORT_RATE_ADVICE if self.tunable.script.rate is None else MATCH_ADVICE

    def _require_repeatable(self, arena: ScriptArena) -> None:
        """Raise UserError if two starts of the default differ by more than a candidate may."""
        try:
            scatter = arena.compare_defaults(max(MIN_LIMIT_S, CHECK_SHARE * self.budget_s))
        except Rejection as problem:
            raise UserError(f"--check: a second start of the command failed: {problem}") from None
        if scatter > arena.reference.compute_tolerance(num_processes=1):
            raise UserError(
                f"--check: the numbers of two starts of the command differ by {100 * scatter:.2g} %, "
                "so they cannot serve as a reference; fix the seed of the script, or leave --check out"
            )
        arena.reference.scatter = scatter

    def _require_budget(self, default: Judgement) -> None:
        spent_s = time.monotonic() - self.began
        needed_s = spent_s + 2 * MIN_STARTS * self._estimate_start_s(default)
        if needed_s > self.budget_s:
            raise UserError(
                f"a budget of {format_duration(self.budget_s)} is too short: the default took "
                f"{format_duration(spent_s)} to start and sample; give --budget "
                f"{int(-(-needed_s // 10) * 10)}s or more (a good search: ten times that)"
            )

    def _estimate_start_s(self, judgement: Judgement) -> float:
        """Estimate the duration of one start of a setting, in seconds."""
        if self.method in (SamplingMethod.WHOLE_RUNS, SamplingMethod.TIMED_RUNS):
            return LAUNCH_S + self.run_s
        return LAUNCH_S + judgement.start_s + SAMPLE_S + judgement.latency_s

    def _confirm(self, arena: ScriptArena) -> Confirmation:
        """Measure all relevant settings in fresh interleaved starts, as often as the time left allows."""
        self.follower.report_phase("confirm")
        space = self.tunable.space
        wanted = (space.default, self.state.best, self.hand, *space.list_steps(self.state.best))
        settings = [each for each in dict.fromkeys(wanted) if not self.state.is_rejected(each)]
        default = self.state.judgements[space.default]
        left_s = self.began + self.budget_s - time.monotonic()
        starts_s = {each: self._estimate_start_s(self.state.judgements.get(each, default)) for each in settings}
        starts_s = select_fitting(starts_s, (space.default, self.state.best), left_s)
        settings = list(starts_s)
        limits_s = {each: min(LIMIT_S, max(MIN_LIMIT_S, MAX_RUN_RATIO * s)) for each, s in starts_s.items()}
        round_s = sum(starts_s.values())
        num_starts = int(min(MAX_STARTS, max(MIN_STARTS, left_s // max(round_s, 0.1))))
        runs: dict[Setting, list[Sampling]] = {each: [] for each in settings}
        reasons: dict[Setting, str] = {}
        rng = random.Random(self.tunable.name)
        for _ in range(num_starts):
            for setting in rng.sample(settings, len(settings)):
                if setting not in reasons:
                    try:
                        self.follower.report_candidate(setting)
                        runs[setting].append(_measure_fresh_start(arena, setting, limits_s[setting]))
                        self.follower.report_fresh_run(setting, runs[setting][-1].throughput)
                    except Rejection as problem:
                        reasons[setting] = problem.reason
        records = {
            each: self._build_record(each, runs[each], reasons.get(each, ""), arena.leftovers.get(each, ()))
            for each in settings
        }
        for record in records.values():
            self.store.append(record)
        if reasons.get(space.default):
            raise UserError(f"the command as typed failed in a fresh start: {reasons[space.default]}")
        return Confirmation(records)

    def _build_record(
        self, setting: Setting, runs: Sequence[Sampling], reason: str, leftovers: Sequence[str]
    ) -> Record:
        rates = [each.throughput for each in runs]
        params = self.tunable.space.build_params(setting)
        command = self.tunable.script.build_command(params, setting == self.tunable.space.default)
        trial_id = hashlib.sha256(json.dumps([command, format_utc_now(), rates]).encode()).hexdigest()[:16]
        metrics = {}
        if rates and not reason:
            interval = estimate_process_median(rates)
            metrics = {"samples_per_s": interval.value, "latency_p50_s": 1 / statistics.median(rates)}
            error = find_largest_error(each.check_error for each in runs)
            metrics |= {} if error is None else {"check_error": error}
            metrics["peak_memory_bytes"] = max(each.memory_bytes for each in runs)
            if interval.low is not None and interval.high is not None:
                metrics |= {"samples_per_s_low": interval.low, "samples_per_s_high": interval.high}
        return Record(
            trial_id=trial_id,
            study=f"tune {self.tunable.name}",
            status="failed" if reason else "ok",
            reason=reason,
            kind="exit" if reason else "",
            params={**params, "workload": self.tunable.name, "mode": "script"},
            metrics=metrics,
            work=self._describe_work(),
            runs=tuple({"status": "ok", "metrics": {"samples_per_s": each}} for each in rates),
            command=shlex.join(command),
            machine=self.tunable.host.describe(),
            notes=describe_leftovers(leftovers),
            corewise_version=__version__,
            started_at=format_utc_now(),
            finished_at=format_utc_now(),
        )

    def _describe_work(self) -> dict[str, float]:
        """Describe what a rate counts, for reports; samples need no description."""
        if self.method is SamplingMethod.TIMED_RUNS:
            return {"whole_runs": 1.0}
        return {"whole_steps": 1.0} if self.unit == "steps/s" else {}

    def _finish(self, result: TuneResult) -> TuneResult:
        self._record_seconds()
        seconds = self.counted_until - self.began + self.journal_state.seconds
        command = shlex.join(self.tunable.script.fill_placeholders(result.best.params))
        result = replace(
            result,
            seconds=seconds,
            store=str(self.store.path),
            command=command,
            environment=self.tunable.script.build_environment(result.best.params),
            # Everything is set from outside, the batch by a placeholder.
            code={},
            unit=self.unit,
            throughput_source=self.throughput_source,
            failure_lines=self.failure_lines,
        )
        return record_answer(self.journal, result)


def select_fitting(
    starts_s: Mapping[Setting, float], deciding: Sequence[Setting], left_s: float
) -> dict[Setting, float]:
    """Return all settings, or only the deciding ones if the time is too short for MIN_STARTS of all."""
    fits = MIN_STARTS * sum(starts_s.values()) <= left_s
    return {each: start_s for each, start_s in starts_s.items() if fits or each in deciding}


def build_script_tuned_file(tunable: ScriptTunable, result: TuneResult) -> TunedSettings:
    """Build the tuned file of a script."""
    names = OUTSIDE if tunable.script.batch is not None else FIXABLE
    params = {n: value for n, value in result.best.params.items() if n in names and value is not None}
    return TunedSettings(
        subject=TuningSubject(command=tunable.script.command),
        params=params,
        machine=read_fingerprint(tunable.host.topology, tunable.host.allocation),
        measured=build_measured(result),
        environment=dict(result.environment),
        corewise_version=__version__,
        date=format_utc_now(),
    )


def _measure_fresh_start(arena: ScriptArena, setting: Setting, limit_s: float) -> Sampling:
    entrant = arena.enter(setting, limit_s)
    try:
        sampling = entrant.sample()
        errors = (sampling.check_error, entrant.finish_check(limit_s))
        return replace(sampling, check_error=find_largest_error(errors))
    finally:
        entrant.leave()
