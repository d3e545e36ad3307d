"""What is claimed in the end is measured anew: fresh processes, interleaved, after the choice was made."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from corewise.engine.plan import Plan
from corewise.engine.run import Observer, StudyRun
from corewise.spec.errors import UserError
from corewise.spec.record import Record
from corewise.spec.trial import NO_CHECK, Protocol
from corewise.stats.compare import Comparison, compare
from corewise.store.store import Store
from corewise.tuner.found import Judged
from corewise.tuner.question import Tunable
from corewise.tuner.space import Setting

MAIN, BESIDE = "main", "beside"  # the two that decide; what is shown beside them
RUN_OVERHEAD_S = 0.5  # fork, result
COLD_START_S = 3.0  # a framework is imported
WARM_UP_STEPS = 6
RACED_WARM_UP_S = 1.0  # of what it took to start in the search
RECOMPILED = 0.25  # of the time to compile, where the compiler finds its work again
FEWEST_BESIDE = 3  # runs below which an interval says nothing
OTHER_SHAPES = "the factory returns other shapes at every start"
USUAL = 2  # the effort that time is set aside for


@dataclass(frozen=True)
class Effort:
    """How much is spent on the fresh runs."""

    num_main: int
    num_beside: int
    sample_s: float
    min_samples: int
    warm_up_s: float


EFFORTS = (  # from what is best to what must be
    Effort(8, 5, 1.0, 10, 5.0),
    Effort(6, 4, 1.0, 5, 3.0),
    Effort(5, 3, 0.5, 3, 2.0),
    Effort(4, 3, 0.4, 3, 1.5),
    Effort(3, 3, 0.3, 2, 1.0),
    Effort(3, 0, 0.3, 1, 0.5),
)


def effort_s(effort: Effort, main: Sequence[Judged], beside: Sequence[Judged]) -> float:
    """Seconds the fresh runs of these settings are likely to take, the two cold starts included."""
    runs_s = sum(effort.num_main * _run_s(effort, each) for each in main)
    beside_s = sum(effort.num_beside * _run_s(effort, each) for each in beside)
    started = [*main, *(beside if effort.num_beside else ())]
    parents_s = sum(min(COLD_START_S, each.start_s) for each in started)
    cold_s = sum(each.start_s + _run_s(effort, each) for each in main)
    return runs_s + beside_s + parents_s + cold_s


def fitting_effort(left_s: float, main: Sequence[Judged], beside: Sequence[Judged]) -> Effort:
    """The most careful effort that fits into the time left; the least one where none does."""
    fitting = (each for each in EFFORTS if effort_s(each, main, beside) <= left_s)
    return next(fitting, EFFORTS[-1])


def once_warm(default: Judged, others: Iterable[Judged]) -> Judged:
    """The default, no slower to start than the slowest of others: it was first, before files were read."""
    starts_s = [each.start_s - each.compile_s for each in others if each.start_s > 0]
    return replace(default, start_s=min([default.start_s, max(starts_s, default=math.inf)]))


def limit_since(since: str, limit_s: float) -> float:
    """The limit of a run, less than a second longer since something: of what was run before, nothing counts.

    Another protocol makes another trial.
    """
    digest = hashlib.sha256(since.encode()).hexdigest()
    return limit_s + (1 + int(digest[:4], 16)) / 2**17 if since else limit_s


def protocols_for(effort: Effort, limit_s: float) -> dict[str, Protocol]:
    """How the settings that decide and those beside them are measured."""
    main = Protocol(
        min_runs=effort.num_main,
        max_runs=effort.num_main,  # all of them: no look in between, no correction for it
        min_warmup_steps=2,
        max_warmup_s=effort.warm_up_s,
        min_samples=effort.min_samples,
        min_sample_s=effort.sample_s,
        max_repeats_disturbed=1,
        timeout_s=limit_s,
    )
    protocols = {MAIN: main}
    if effort.num_beside >= FEWEST_BESIDE:
        num = effort.num_beside
        protocols[BESIDE] = replace(main, min_runs=num, max_runs=num)
    return protocols


@dataclass(frozen=True)
class Confirmed:
    """The records of fresh runs by setting, and the plan they were run by."""

    records: Mapping[Setting, Record]
    plan: Plan | None = None  # a script has none

    def faster(self, setting: Setting, base: Setting, num_comparisons: int = 1) -> Comparison | None:
        """The times of a setting against those of another, or None where one of them failed."""
        a, b = self.times_s(base), self.times_s(setting)
        return compare(a, b, num_comparisons=num_comparisons) if a and b else None

    def times_s(self, setting: Setting) -> list[float]:
        """Seconds per sample of every run."""
        record = self.records.get(setting)
        if record is None or record.status != "ok":
            return []
        return [1 / run["metrics"]["samples_per_s"] for run in record.runs if run.get("status") == "ok"]


def confirm(
    tunable: Tunable,
    store: Store,
    observer: Observer,
    roles: Mapping[Setting, str],
    protocols: Mapping[str, Protocol],
) -> Confirmed:
    """Fresh interleaved runs of the settings; those done before are taken from the store."""
    plans = {
        setting: tunable.plan(setting, protocols[role])
        for setting, role in roles.items()
        if role in protocols
    }
    trials = {setting: plan.trials[0] for setting, plan in plans.items() if plan.trials}
    first = next(iter(plans.values()))
    whole = replace(first, trials=tuple(trials.values()), skipped=())
    StudyRun(whole, store, observer, retry_failed=True).execute()
    ids = {trial.trial_id: setting for setting, trial in trials.items()}
    records = store.records(only=set(ids)).records
    found = {ids[record.trial_id]: record for record in records}
    return Confirmed(found, whole)


def require_same_shapes(records: Iterable[Record]) -> None:
    """Refuses what differs from start to start: nothing can be said of it."""
    runs = [run for record in records for run in record.runs]
    told = dict.fromkeys(str(r["shapes"]) for run in runs for r in run.get("ranks") or () if "shapes" in r)
    if len(told) > 1:
        first, second, *_ = told
        raise UserError(f"{OTHER_SHAPES} ({first}, then {second}): fix its seed, or its sizes")


def doubt_by_others(records: Iterable[Record]) -> str:
    """What disturbed the fresh runs, where that were at least half of them; else empty."""
    runs = [run for record in records for run in record.runs]
    told = [str(run["disturbances"][0]) for run in runs if run.get("disturbances")]
    if not told or 2 * len(told) < len(runs):
        return ""
    return (
        f"{len(told)} of {len(runs)} fresh runs of the default and the best were disturbed ({told[0]}): "
        "the gain may be another on a quiet machine; ask there with --again"
    )


def is_unchecked(records: Iterable[Record]) -> bool:
    """Whether the numbers of a step of one's own were never looked at."""
    return any(lacks_check(run.get("ranks") or ()) for record in records for run in record.runs)


def lacks_check(ranks: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the ranks of a run had nothing to check their numbers by."""
    return any(rank.get("check_reference") == NO_CHECK for rank in ranks)


def require_budget(budget_s: float, spent_s: float, default: Judged, spoken_s: str) -> None:
    """Refuses a budget in which not even the default and one other setting can be measured."""
    needed_s = spent_s + effort_s(EFFORTS[-1], [default, default], []) + 2 * default.start_s
    if budget_s < needed_s:
        raise UserError(
            f"a budget of {spoken_s} is too short: the default took {spent_s:.0f} s to start and sample, "
            f"and measuring it against one other setting needs about {needed_s:.0f} s; "
            f"give --budget {_round_up(needed_s)}s or more (a good search: {_round_up(10 * needed_s)}s)"
        )


def _run_s(effort: Effort, judged: Judged) -> float:
    step_s = judged.latency_s
    sampling_s = max(effort.sample_s, effort.min_samples * step_s)
    raced_s = judged.start_s - (1 - RECOMPILED) * judged.compile_s - _warm_up_s(RACED_WARM_UP_S, step_s)
    begin_s = max(RUN_OVERHEAD_S + 2 * step_s, raced_s)  # a GPU alone may take seconds to be ready
    return begin_s + _warm_up_s(effort.warm_up_s, step_s) + sampling_s


def _warm_up_s(most_s: float, step_s: float) -> float:
    return min(max(most_s, 3 * step_s), WARM_UP_STEPS * step_s)


def _round_up(seconds: float) -> int:
    return int(-(-seconds // 10) * 10)
