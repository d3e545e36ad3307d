"""Two stores, or two parts of one -> a comparison."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from corewise.comparison.environment import differences
from corewise.comparison.matching import Matches, are_interleaved, match, nothing_in_common
from corewise.comparison.model import Comparison, OneSided, Rule, SideFacts
from corewise.comparison.names import Namer
from corewise.comparison.overall import summarise
from corewise.comparison.selection import By, Condition, Offer, why_none
from corewise.comparison.sides import Measured, Side, Take
from corewise.comparison.verdicts import Partners, judge, make_rule, stricter_looks
from corewise.report.words import counted
from corewise.spec.errors import UserError
from corewise.store.store import Store

DEFAULT_THRESHOLD = 0.05


def compare_stores(
    a: Path,
    b: Path,
    *,
    by: Sequence[By] = (),
    where: Sequence[Condition] = (),
    threshold: float = DEFAULT_THRESHOLD,
    ignore_disturbed: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Store B against store A; with `by`, each gives only the records that have its side's value.

    With `ignore_disturbed`, processes that others disturbed decide nothing.
    """
    same = a.resolve() == b.resolve()
    if same and not by:
        raise UserError(
            f"A and B are the same store ({a}): say how the two sides differ, for example "
            f"`corewise compare {a} --by math=vendor,vanilla` or --by versions.torch=2.11,2.13"
        )
    side_a = Side(a, (*where, *(Condition(each.name, each.a) for each in by)))
    side_b = Side(b, (*where, *(Condition(each.name, each.b) for each in by)))
    ignored = frozenset(each.param for each in by if each.param)
    for sides in [(side_a, side_b)] if same else [(side_a,), (side_b,)]:
        tell(f"reading {sides[0].store}")
        _fill(sides, ignored)
    tell("comparing")
    matches = match(side_a, side_b)
    if not (matches.pairs or matches.broken or matches.fixed or matches.both_failed):
        raise nothing_in_common(side_a, side_b, by)
    rule = make_rule(matches.pairs, threshold, ignore_disturbed)
    return _compared(side_a, side_b, matches, same, rule, ignored)


def _fill(sides: Sequence[Side], ignored: frozenset[str]) -> None:
    """Give the sides of one store their trials; raises UserError when one is left without."""
    store = Store.open(sides[0].store, create=False, advice="name another")
    contents = store.contents(Take(tuple(side.conditions for side in sides), ignored))
    for each in contents.standing:
        if each.kept is None:
            continue
        if len(sides) > 1 and all(each.kept.counts):
            told = " and ".join(str(side.conditions[-1]) for side in sides)
            raise UserError(
                f"trial {each.trial_id} of {sides[0].store} has both {told}: name values that differ"
            )
        for side, counts in zip(sides, each.kept.counts, strict=True):
            if counts:
                side.add(each.kept.trial)
    for side in sides:
        side.damage = contents.damage
        if not side.trials:
            raise _nothing_there(side, store)


def _nothing_there(side: Side, store: Store) -> UserError:
    offers = store.contents(Offer(tuple(each.name for each in side.conditions))).standing
    reason = why_none(str(side.store), [each.kept for each in offers], side.conditions) if offers else None
    if reason is not None:
        return reason
    if side.damage:
        return UserError(f"the store {side.store} holds no record that can be read: {side.damage[0]}")
    return UserError(
        f"the store {side.store} is empty: run a study with `corewise run STUDY --store {side.store}`"
    )


def _compared(
    a: Side, b: Side, matches: Matches, same_store: bool, rule: Rule, ignored: frozenset[str]
) -> Comparison:
    partners = [_partners(a, b, one, two, same_store) for one, two in matches.pairs]
    everyone = [*matches.pairs, *matches.broken, *matches.fixed, *matches.both_failed]
    name = Namer((one.params for one, _ in everyone), ignored)
    trials = judge(partners, rule, name)
    apart = [mine or theirs for mine, theirs in (*matches.only_a, *matches.only_b)]
    name_all = Namer((each.params for each in (*(one for one, _ in everyone), *apart) if each), ignored)
    one_sided = {
        what: [_one_sided(mine, theirs, naming) for mine, theirs in getattr(matches, what)]
        for naming, names in ((name, ("broken", "fixed", "both_failed")), (name_all, ("only_a", "only_b")))
        for what in names
    }
    looks = {each.looks for each in partners if not each.interleaved}
    return Comparison(
        a=_facts(a),
        b=_facts(b),
        rule=rule,
        differences=differences(a, b, everyone),
        common=name.common,
        trials=trials,
        summary=summarise(trials, one_sided["broken"], one_sided["fixed"], rule, list(looks)),
        **one_sided,
    )


def _partners(a: Side, b: Side, one: Measured, two: Measured, same_store: bool) -> Partners:
    left, right = a.environments[one.environment], b.environments[two.environment]
    same_host = same_store and left.machine.get("hostname") == right.machine.get("hostname")
    return Partners(one, two, stricter_looks(left.looks, right.looks), are_interleaved(one, two, same_host))


def _one_sided(mine: Measured | None, theirs: Measured | None, name: Namer) -> OneSided:
    point = (mine or theirs).params  # type: ignore[union-attr]
    reasons = [trial.reason for trial in (mine, theirs) if trial is not None and trial.reason]
    return OneSided(
        name=name(point),
        a_trial_id=mine.trial_id if mine else "",
        b_trial_id=theirs.trial_id if theirs else "",
        reason=reasons[-1] if reasons else "",
    )


def _facts(side: Side) -> SideFacts:
    starts = [trial.started_s for trial in side.trials.values() if not math.isnan(trial.started_s)]
    ends = [trial.finished_s for trial in side.trials.values() if not math.isnan(trial.finished_s)]
    notices = []
    if side.num_repeated:
        notices.append(
            f"{counted(side.num_repeated, 'record')} of {side.store} had the parameters of another: "
            "the last measured one counts; choose with --where, for example --where versions.torch=2.11"
        )
    if side.damage:
        notices.append(
            f"{counted(len(side.damage), 'place')} of {side.store} could not be read; "
            f"the first: {side.damage[0]}"
        )
    return SideFacts(
        store=str(side.store),
        selected=" ".join(map(str, side.conditions)),
        num_records=side.num_records,
        num_ok=sum(trial.status == "ok" for trial in side.trials.values()),
        measured_from=_iso(min(starts, default=None)),
        measured_to=_iso(max(ends, default=None)),
        notices=notices,
    )


def _iso(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
