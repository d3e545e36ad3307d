"""Compare two stores, or two parts of one store."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from corewise.analysis.comparison.comparison_model import OneSidedTrial, SideFacts, StoreComparison, VerdictRule
from corewise.analysis.comparison.environment import find_differences
from corewise.analysis.comparison.matching import Matches, explain_no_match, have_interleaved_runs, match_trials
from corewise.analysis.comparison.selection import Condition, FieldChoiceReader, SideField, explain_no_records
from corewise.analysis.comparison.sides import ComparisonSide, MeasuredTrial, TrialReader
from corewise.analysis.comparison.summary import summarize_comparison
from corewise.analysis.comparison.trial_names import TrialNamer
from corewise.analysis.comparison.verdicts import Partners, build_rule, choose_stricter_looks, judge_pairs
from corewise.errors import UserError
from corewise.store.store import Store
from corewise.text_format import format_count

DEFAULT_THRESHOLD = 0.05


def compare_stores(
    a: Path,
    b: Path,
    *,
    by: Sequence[SideField] = (),
    where: Sequence[Condition] = (),
    threshold: float = DEFAULT_THRESHOLD,
    ignore_disturbed: bool = False,
    report_progress: Callable[[str], None] = lambda text: None,
) -> StoreComparison:
    """Compare store B with store A.

    Args:
        by: fields whose value selects the records of each side.
        where: conditions that the records of both sides must meet.
        threshold: smallest slowdown that counts as a regression.
        ignore_disturbed: leave disturbed processes out.
        report_progress: called with a text before each slow step.

    Raises:
        UserError: if a side has no records, or no trial was measured on both sides.
    """
    is_same_store = a.resolve() == b.resolve()
    if is_same_store and not by:
        raise UserError(
            f"A and B are the same store ({a}): say how the two sides differ, for example "
            f"`corewise compare {a} --by math=vendor,vanilla` or --by versions.torch=2.11,2.13"
        )
    side_a = ComparisonSide(a, (*where, *(Condition(each.name, each.a) for each in by)))
    side_b = ComparisonSide(b, (*where, *(Condition(each.name, each.b) for each in by)))
    ignored = frozenset(each.param for each in by if each.param)
    for sides in [(side_a, side_b)] if is_same_store else [(side_a,), (side_b,)]:
        report_progress(f"reading {sides[0].store}")
        _fill(sides, ignored)
    report_progress("comparing")
    matches = match_trials(side_a, side_b)
    if not (matches.pairs or matches.broken or matches.fixed or matches.both_failed):
        raise explain_no_match(side_a, side_b, by)
    rule = build_rule(matches.pairs, threshold, ignore_disturbed)
    return _build_comparison(side_a, side_b, matches, is_same_store, rule, ignored)


def _fill(sides: Sequence[ComparisonSide], ignored: frozenset[str]) -> None:
    """Read the trials of one store into its sides; raises UserError if a side has none."""
    store = Store.open(sides[0].store, create=False, advice="name another")
    contents = store.read_contents(TrialReader(tuple(side.conditions for side in sides), ignored))
    for each in contents.records:
        if each.value is None:
            continue
        if len(sides) > 1 and all(each.value.accepted_by):
            both = " and ".join(str(side.conditions[-1]) for side in sides)
            raise UserError(f"trial {each.trial_id} of {sides[0].store} has both {both}: name values that differ")
        for side, is_accepted in zip(sides, each.value.accepted_by, strict=True):
            if is_accepted:
                side.add(each.value.trial)
    for side in sides:
        side.damage = contents.damage
        if not side.trials:
            raise _explain_empty_side(side, store)


def _explain_empty_side(side: ComparisonSide, store: Store) -> UserError:
    offers = store.read_contents(FieldChoiceReader(tuple(each.name for each in side.conditions))).records
    reason = explain_no_records(str(side.store), [each.value for each in offers], side.conditions) if offers else None
    if reason is not None:
        return reason
    if side.damage:
        return UserError(f"the store {side.store} holds no record that can be read: {side.damage[0]}")
    return UserError(f"the store {side.store} is empty: run a study with `corewise run STUDY --store {side.store}`")


def _build_comparison(
    a: ComparisonSide, b: ComparisonSide, matches: Matches, same_store: bool, rule: VerdictRule, ignored: frozenset[str]
) -> StoreComparison:
    partners = [_build_partners(a, b, one, two, same_store) for one, two in matches.pairs]
    everyone = [*matches.pairs, *matches.broken, *matches.fixed, *matches.both_failed]
    name = TrialNamer((a.describe(one) for one, _ in everyone), ignored)
    trials = judge_pairs(partners, rule, lambda trial: name(a.describe(trial)))
    one_sided_trials = [mine or theirs for mine, theirs in (*matches.only_a, *matches.only_b)]
    name_all = TrialNamer((each.params for each in (*(one for one, _ in everyone), *one_sided_trials) if each), ignored)
    one_sided = {
        what: [
            _build_one_sided_trial(mine, theirs, naming(a.describe(mine) if mine else b.describe(theirs)))
            for mine, theirs in getattr(matches, what)
        ]
        for naming, names in ((name, ("broken", "fixed", "both_failed")), (name_all, ("only_a", "only_b")))
        for what in names
    }
    looks = {each.looks for each in partners if not each.interleaved}
    return StoreComparison(
        a=_summarize_side(a),
        b=_summarize_side(b),
        rule=rule,
        differences=find_differences(a, b, everyone),
        common=name.common,
        trials=trials,
        summary=summarize_comparison(trials, one_sided["broken"], one_sided["fixed"], rule, list(looks)),
        **one_sided,
    )


def _build_partners(
    a: ComparisonSide, b: ComparisonSide, one: MeasuredTrial, two: MeasuredTrial, same_store: bool
) -> Partners:
    left, right = a.environments[one.environment], b.environments[two.environment]
    same_host = same_store and left.machine.get("hostname") == right.machine.get("hostname")
    return Partners(
        one, two, choose_stricter_looks(left.looks, right.looks), have_interleaved_runs(one, two, same_host)
    )


def _build_one_sided_trial(mine: MeasuredTrial | None, theirs: MeasuredTrial | None, name: str) -> OneSidedTrial:
    reasons = [trial.reason for trial in (mine, theirs) if trial is not None and trial.reason]
    return OneSidedTrial(
        name=name,
        a_trial_id=mine.trial_id if mine else "",
        b_trial_id=theirs.trial_id if theirs else "",
        reason=reasons[-1] if reasons else "",
    )


def _summarize_side(side: ComparisonSide) -> SideFacts:
    starts = [trial.started_s for trial in side.trials.values() if not math.isnan(trial.started_s)]
    ends = [trial.finished_s for trial in side.trials.values() if not math.isnan(trial.finished_s)]
    notices = []
    if side.num_repeated:
        notices.append(
            f"{format_count(side.num_repeated, 'record')} of {side.store} had the parameters of another: "
            "the one with the machine, version and protocol of the other side counts, otherwise the last "
            "measured one; "
            "choose with --where, for example --where versions.torch=2.11"
        )
    if side.damage:
        notices.append(
            f"{format_count(len(side.damage), 'place')} of {side.store} could not be read; the first: {side.damage[0]}"
        )
    return SideFacts(
        store=str(side.store),
        selected=" ".join(map(str, side.conditions)),
        num_records=side.num_records,
        num_ok=sum(trial.status == "ok" for trial in side.trials.values()),
        measured_from=_format_time(min(starts, default=None)),
        measured_to=_format_time(max(ends, default=None)),
        notices=notices,
    )


def _format_time(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
