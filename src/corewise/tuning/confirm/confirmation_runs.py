"""Confirm the winner: measure it and the default again, in fresh interleaved processes.

During the search, candidates stay alive between samples, and the winner may owe its lead to luck. The
speed-up that we report therefore comes from processes that were started after the choice was made.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from typing import Protocol as Interface

from corewise.analysis.columns import get_run_rates
from corewise.errors import UserError
from corewise.measured.trial import NO_CHECK, Protocol, Trial
from corewise.run.identity.legacy_identity import keep_old_ids
from corewise.run.plan import Plan
from corewise.run.study_runner import RunObserver, StudyRun
from corewise.run.warm_parent import ParentPool
from corewise.stats.trial_comparison import Comparison, compare_trials
from corewise.store.store import Store
from corewise.study.durations import format_duration
from corewise.study.record import Record
from corewise.tuning.question import Tunable
from corewise.tuning.search.judgements import Judgement
from corewise.tuning.search.setting_space import Setting

# Seconds to fork a run and to read its result.
RUN_OVERHEAD_S = 0.5
# Upper bound, in seconds, of the time to import a framework.
COLD_START_S = 3.0
WARM_UP_STEPS = 6
# Seconds of warm-up that are part of the start time that the search measured.
RACED_WARM_UP_S = 1.0
# With a warm compiler cache, compiling again takes about a quarter of the first time.
RECOMPILE_FRACTION = 0.25
# Fewer runs than this give no usable confidence interval.
MIN_REFERENCE_RUNS = 3
SHAPES_DIFFER = "the factory returns different shapes at every start"
# With fewer runs, there is no time to repeat a disturbed one.
MIN_RUNS_FOR_REPEATS = 5
# Index into EFFORTS: the search leaves enough time for this effort.
USUAL_EFFORT = 2


class WarmParents(Interface):
    """The warm parents of a search, with what it knows to make a start cheaper."""

    @property
    def pool(self) -> ParentPool: ...
    def prepare_trial(self, trial: Trial) -> Trial: ...


class Role(Enum):
    """Why a setting is measured in the confirmation.

    The contenders, the winner and the default, decide the verdict. References, the hand setting and the
    steps of the ladder, are shown for comparison only.
    """

    CONTENDER = "contender"
    REFERENCE = "reference"


@dataclass(frozen=True)
class ConfirmationEffort:
    """How many fresh runs are made, and how long each one takes."""

    num_contender_runs: int
    num_reference_runs: int
    sample_s: float
    min_samples: int
    warm_up_s: float


# From the most careful effort to the least one that gives a verdict.
EFFORTS = (
    ConfirmationEffort(8, 5, 1.0, 10, 5.0),
    ConfirmationEffort(6, 4, 1.0, 5, 3.0),
    ConfirmationEffort(5, 3, 0.5, 3, 2.0),
    ConfirmationEffort(4, 3, 0.4, 3, 1.5),
    ConfirmationEffort(3, 3, 0.3, 2, 1.0),
    ConfirmationEffort(3, 0, 0.3, 1, 0.5),
)


def estimate_confirmation_s(
    effort: ConfirmationEffort,
    contenders: Sequence[Judgement],
    references: Sequence[Judgement],
    *,
    starts_cold: bool = True,
) -> float:
    """Estimate how many seconds the confirmation takes, usually including the cold starts of the contenders."""
    contenders_s = sum(effort.num_contender_runs * _estimate_run_s(effort, each) for each in contenders)
    references_s = sum(effort.num_reference_runs * _estimate_run_s(effort, each) for each in references)
    started = [*contenders, *(references if effort.num_reference_runs else ())]
    # The search leaves its parents warm; settings that it did not measure in parts start new ones.
    parents_s = sum(min(COLD_START_S, each.start_s) for each in started if not each.setup_s)
    cold_s = sum(estimate_cold_start_s(effort, each) for each in contenders) if starts_cold else 0.0
    return contenders_s + references_s + parents_s + cold_s


def estimate_cold_start_s(effort: ConfirmationEffort, judgement: Judgement) -> float:
    """Estimate how many seconds it takes to start the command of a setting from cold."""
    return judgement.start_s + _estimate_run_s(effort, judgement)


def choose_effort(
    left_s: float,
    contenders: Sequence[Judgement],
    references: Sequence[Judgement],
    efforts: Sequence[ConfirmationEffort] = EFFORTS,
) -> ConfirmationEffort:
    """Return the most careful effort that fits into the time left, or the least one if none does.

    If none fits with its cold starts, they are left out.
    """
    for starts_cold in (True, False):
        for each in efforts:
            if estimate_confirmation_s(each, contenders, references, starts_cold=starts_cold) <= left_s:
                return each
    return efforts[-1]


def limit_default_start(default: Judgement, others: Iterable[Judgement]) -> Judgement:
    """Return the default with a start time no longer than the slowest of the others.

    It was started first, with a cold file cache, so its measured start time is too long.
    """
    starts_s = [each.start_s - each.compile_s for each in others if each.start_s > 0]
    return replace(default, start_s=min([default.start_s, max(starts_s, default=math.inf)]))


def build_protocols(effort: ConfirmationEffort, limit_s: float) -> dict[Role, Protocol]:
    """Return how contenders and, if the effort allows any, references are measured."""
    # Exactly this many runs: without an interim look, no correction for optional stopping is needed.
    contender = Protocol(
        min_runs=effort.num_contender_runs,
        max_runs=effort.num_contender_runs,
        min_warmup_steps=2,
        max_warmup_s=effort.warm_up_s,
        min_samples=effort.min_samples,
        min_sample_s=effort.sample_s,
        max_repeats_disturbed=1 if effort.num_contender_runs >= MIN_RUNS_FOR_REPEATS else 0,
        timeout_s=limit_s,
    )
    protocols = {Role.CONTENDER: contender}
    if effort.num_reference_runs >= MIN_REFERENCE_RUNS:
        num = effort.num_reference_runs
        protocols[Role.REFERENCE] = replace(contender, min_runs=num, max_runs=num)
    return protocols


@dataclass(frozen=True)
class Confirmation:
    """The records of the fresh runs by setting, and the plan that they followed (scripts have none)."""

    records: Mapping[Setting, Record]
    plan: Plan | None = None

    def compare(self, setting: Setting, base: Setting, num_comparisons: int = 1) -> Comparison | None:
        """Compare the times of a setting with those of another; return None if one of them failed."""
        a, b = self.list_times_s(base), self.list_times_s(setting)
        return compare_trials(a, b, num_comparisons=num_comparisons) if a and b else None

    def list_times_s(self, setting: Setting) -> list[float]:
        """List the seconds per sample of every run."""
        record = self.records.get(setting)
        if record is None or record.status != "ok":
            return []
        return [1 / rate for rate in get_run_rates(record)]


def confirm(
    tunable: Tunable,
    store: Store,
    observer: RunObserver,
    roles: Mapping[Setting, Role],
    protocols: Mapping[Role, Protocol],
    generation: str = "",
    *,
    parents: WarmParents | None = None,
    deadline: float | None = None,
) -> Confirmation:
    """Run the settings in fresh interleaved processes; reuse stored runs of the same generation.

    Args:
        parents: The warm parents of the search, which need not start again.
        deadline: No run starts that would probably end later. Settings without runs have no record.
    """
    plans = {
        setting: tunable.plan(setting, protocols[role], generation)
        for setting, role in roles.items()
        if role in protocols
    }
    trials = {setting: plan.trials[0] for setting, plan in plans.items() if plan.trials}
    first = next(iter(plans.values()))
    whole = keep_old_ids(replace(first, trials=tuple(trials.values()), skipped=()), store)
    if parents is None:
        run = StudyRun(whole, store, observer, retry_failed=True, deadline=deadline)
    else:
        run = StudyRun(
            whole,
            store,
            observer,
            retry_failed=True,
            pool=parents.pool,
            deadline=deadline,
            prepare_trial=parents.prepare_trial,
        )
    run.execute()
    ids = {trial.trial_id: setting for setting, trial in zip(trials, whole.trials, strict=True)}
    records = store.read_records(only=set(ids)).records
    return Confirmation({ids[record.trial_id]: record for record in records}, whole)


def require_same_shapes(records: Iterable[Record]) -> None:
    """Raise UserError if the shapes differ between starts: their times cannot be compared."""
    runs = [run for record in records for run in record.runs]
    shapes = dict.fromkeys(str(r["shapes"]) for run in runs for r in run.get("ranks") or () if "shapes" in r)
    if len(shapes) > 1:
        first, second, *_ = shapes
        raise UserError(f"{SHAPES_DIFFER} ({first}, then {second}): fix its seed, or its sizes")


def describe_disturbed_runs(records: Iterable[Record]) -> str:
    """Describe what disturbed the fresh runs; return an empty text if fewer than half were disturbed."""
    runs = [run for record in records for run in record.runs]
    causes = [str(run["disturbances"][0]) for run in runs if run.get("disturbances")]
    if not causes or 2 * len(causes) < len(runs):
        return ""
    return (
        f"{len(causes)} of {len(runs)} fresh runs of the default and the best were disturbed ({causes[0]}); "
        "the gain may differ on a quiet machine: measure there with --again"
    )


def is_unchecked(records: Iterable[Record]) -> bool:
    """Return whether the results of a custom step were never checked."""
    return any(is_check_missing(run.get("ranks") or ()) for record in records for run in record.runs)


def is_check_missing(ranks: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the ranks of a run had no reference to check their results against."""
    return any(rank.get("check_reference") == NO_CHECK for rank in ranks)


def require_budget(budget_s: float, spent_s: float, default: Judgement) -> None:
    """Raise UserError if the default alone used up the budget."""
    if spent_s > budget_s:
        raise UserError(
            f"a budget of {format_duration(budget_s)} is too short: the default alone took {spent_s:.0f} s to start "
            f"and sample; give --budget {estimate_least_budget_s(spent_s, default)}s or more"
        )


def estimate_least_budget_s(spent_s: float, default: Judgement) -> int:
    """Estimate the budget that is enough to compare the default with two settings, in whole tens of seconds."""
    compared_s = estimate_confirmation_s(EFFORTS[-1], [default, default], [], starts_cold=False)
    return _round_up(1.1 * (spent_s + compared_s + 2 * max(spent_s, default.start_s)))


def _estimate_run_s(effort: ConfirmationEffort, judgement: Judgement) -> float:
    step_s = judgement.latency_s
    sampling_s = max(effort.sample_s, effort.min_samples * step_s)
    raced_s = (
        judgement.start_s
        - (1 - RECOMPILE_FRACTION) * judgement.compile_s
        - _estimate_warm_up_s(RACED_WARM_UP_S, step_s)
    )
    # Where the parts of the start are known, those of the warm parent are left out.
    if judgement.setup_s > 0:
        raced_s = RUN_OVERHEAD_S + judgement.setup_s - (1 - RECOMPILE_FRACTION) * judgement.compile_s
    # A GPU alone may take seconds to be ready.
    begin_s = max(RUN_OVERHEAD_S + 2 * step_s, raced_s)
    return begin_s + _estimate_warm_up_s(effort.warm_up_s, step_s) + sampling_s


def _estimate_warm_up_s(limit_s: float, step_s: float) -> float:
    return min(max(limit_s, 3 * step_s), WARM_UP_STEPS * step_s)


def _round_up(seconds: float) -> int:
    return int(-(-seconds // 10) * 10)
