"""The search: vary knob after knob from a good start, and race each challenger against the best so far.

Why not a sampler: there are few, discrete and mostly independent knobs, and starting a setting costs more
than sampling it. Coordinate steps need few starts. Paired samplings of processes that stay alive resolve a
few per cent, which drift would hide in separate measurements.
"""

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from corewise.measured.trial import INFEASIBLE, NO_EFFECT, NOT_NOW, REFUSALS
from corewise.tuning.search.arena import Arena, Entrant, Rejection, Sampling, find_largest_error
from corewise.tuning.search.judgements import Judgement, SearchState, Watcher
from corewise.tuning.search.paired_race import Noise, Racer, Verdict, run_race
from corewise.tuning.search.rejection_causes import RejectionCauses
from corewise.tuning.search.setting_space import Setting, Space, UntriedChoice, get_value

MAX_PASSES = 8
# Pairs of choices that are tried together after a pass that changed nothing.
MAX_PAIRS = 24
# A choice that lost by a larger log ratio is not tried again with other choices.
HOPELESS_LOSS = -0.15
# A latency within this share of the default's is not worse.
LATENCY_SLACK = 0.02
# Samplings of the default; the smaller number if its steps are long.
NUM_FIRST_SAMPLINGS, MIN_FIRST_SAMPLINGS, LONG_STEP_S = 3, 2, 0.5
# A candidate is given up after this multiple of the usual start time, but not before the limit in seconds.
MAX_START_RATIO = 5.0
MIN_START_LIMIT_S = 30.0
COMPILE_LIMIT_S = 240.0
# Estimated cost of a compiled candidate, as a multiple of the usual cost.
COMPILE_COST_FACTOR = 4.0
# A candidate that needs more than this share of the time left to start is given up, unless two usual candidates
# take longer: others could be tried instead.
START_SHARE = 0.5
# An undecided race ends after this share of the time left.
RACE_SHARE = 0.125
# The choices of these knobs seldom differ by more than two starts of one setting do. To leave what a good
# start has set, a choice needs a minimum lead over two starts of the best so far.
FINE_KNOBS = frozenset({"allocator", "bind", "wait_policy"})
MIN_FINE_LEAD = 0.03
BUDGET_USED_UP = "the budget was used up; run the same command again to resume, or give a longer --budget"
ABANDONED = "abandoned because it did not start within {:.0f} s, its share of the budget; give a longer --budget"
# If the first sampling of the default ends after this share of its time limit, it remains the only one.
FIRST_SHARE = 0.4
# Standard deviation of paired samplings on a noisy machine; usual is half of this or less.
NOISY_SD = 0.06


class Search:
    """One search; if `run` is interrupted, `state` holds the best setting so far."""

    def __init__(
        self,
        space: Space,
        arena: Arena,
        watcher: Watcher,
        *,
        starts: Sequence[Setting],
        bounded_latency: bool,
        earlier: Sequence[Judgement] = (),
    ) -> None:
        self.space, self.arena, self.watcher = space, arena, watcher
        self.starts, self.bounded_latency = starts, bounded_latency
        self.noise = Noise()
        self.causes = RejectionCauses(space)
        self.state = SearchState(space.default, causes=self.causes.found)
        self._incumbent: Racer | None = None
        # The knob that is being varied.
        self._knob = 0
        self._costs_s: list[float] = []
        # By knob and choice: its log ratio to the incumbent.
        self._losses: dict[tuple[int, int], float] = {}
        # By knob: how many of its choices have no effect.
        self._num_without_effect: Counter[int] = Counter()
        # By choice: why it was not tried.
        self._untried: dict[str, str] = {}
        self._deadline, self._until_won = math.inf, False
        # The best of the starts.
        self._usual_setting = space.default
        # The default tied with a preferred start, so it may be tried again.
        self._is_default_tied = False
        for each in earlier:
            self._remember(each)

    def run_default(self, limit_s: float) -> Judgement:
        """Start and sample the default; raise Rejection if it does not run."""
        known = self.state.judgements.get(self.space.default)
        if known is not None:
            return known
        self.watcher.report_candidate(self.space.default)
        began = self.arena.read_clock()
        self.arena.prepare((self.space.default, *self.starts))
        racer = Racer(self.arena.enter(self.space.default, limit_s))
        self._incumbent = racer
        while len(racer.samplings) < NUM_FIRST_SAMPLINGS:
            racer.take_sample()
            is_long = racer.samplings[-1].latency_s > LONG_STEP_S
            if len(racer.samplings) == MIN_FIRST_SAMPLINGS and is_long:
                break
            # One sampling must do if it took long to get there.
            if self.arena.read_clock() - began > FIRST_SHARE * limit_s:
                break
        self._costs_s.append(self.arena.read_clock() - began)
        judgement = _build_judgement(racer.samplings, self.space.default, "default", start_s=racer.entrant.start_s)
        self._record(judgement)
        return judgement

    def take_over(self, other: "Search") -> None:
        """Continue with the default that another search has started, in a space with other knobs."""
        judgement = other.state.judgements[other.space.default]
        self._remember(dataclasses.replace(judgement, setting=self.space.default))
        self._incumbent, self._costs_s = other._incumbent, other._costs_s
        if self._incumbent is not None:
            self._incumbent.entrant.setting = self.space.default

    def run(self, deadline: float, *, until_won: bool = False, stays_open: bool = False) -> SearchState:
        """Search until neither one knob nor a pair of knobs improves the best, or until the deadline.

        Args:
            deadline: On the clock of the arena.
            until_won: Whether the search also ends with the first setting that is better than the default.
            stays_open: Whether the best setting keeps running for another call; `close` ends it.
        """
        self._deadline, self._untried, self._until_won = deadline, {}, until_won
        for start in self.starts:
            self._try_start(start, deadline)
        # A start may lose because of its layout alone.
        if self.state.best == self.space.default:
            for start in dict.fromkeys(map(self._drop_layout, self.starts)):
                self._try_start(start, deadline)
        self._usual_setting = self.state.best
        for number in range(MAX_PASSES):
            before = self.state.best
            if number == 0:
                self._try_in_turns(deadline)
            for knob in range(len(self.space.knobs) if number else 0):
                self._try_knob(knob, deadline)
            # Compiled choices come last because they start slowly.
            for knob, each in enumerate(self.space.knobs):
                for choice in sorted(each.costly):
                    self._try_choice(knob, choice, deadline)
            if self._untried:
                break
            is_settled = number > 0 and self.state.best == before
            if is_settled and not self._try_pairs(deadline):
                break
        self.state.finished = not self._untried
        if not stays_open:
            self.close()
        self.state.untried = tuple(UntriedChoice(text, reason) for text, reason in self._untried.items())
        return self.state

    def describe_noise(self) -> str:
        """Describe the noise of the samplings; return an empty text if it is low."""
        if self.noise.sd <= NOISY_SD:
            return ""
        return (
            f"the machine was noisy: consecutive samplings differed by {self.noise.sd:.0%}, so smaller "
            "differences between settings were hardly detected; use a longer --budget or a quieter machine"
        )

    def _is_exact(self, setting: Setting) -> bool:
        """Return whether it computes with the precision of the default."""
        precision = self.space.find_knob("precision")
        return precision is None or setting[precision] == 0

    def _drop_layout(self, setting: Setting) -> Setting:
        layout = self.space.find_knob("memory_format")
        return setting if layout is None else self.space.replace_choice(setting, layout, 0)

    def _try_pairs(self, deadline: float) -> bool:
        """Try pairs of choices, which may gain although each one alone loses; return whether one won.

        Pairs with the smallest losses come first, up to MAX_PAIRS.
        """
        best, num_tried = self.state.best, 0
        for changes in self._list_pairs():
            setting = best
            for knob, choice in changes:
                setting = self.space.replace_choice(setting, knob, choice)
            setting = self.space.canonicalize(setting)
            if setting in self.state.judgements:
                continue
            if num_tried == MAX_PAIRS:
                break
            num_tried += 1
            costly = any(choice in self.space.knobs[knob].costly for knob, choice in changes)
            if self._try_setting(setting, deadline, self.space.describe(setting), costly=costly):
                return True
        return False

    def _list_pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """List changes of two knobs of the best so far, those with the smallest single losses first."""
        best = self.state.best
        alone = {at: loss for at, loss in self._losses.items() if loss > -math.inf and best[at[0]] != at[1]}
        pairs = [pair for pair in itertools.combinations(alone, 2) if pair[0][0] != pair[1][0]]
        return sorted(pairs, key=lambda pair: -alone[pair[0]] - alone[pair[1]])

    def _list_likely_next(self) -> Iterator[Setting]:
        """Yield the settings that come next if the best so far does not change."""
        for knob in range(self._knob, len(self.space.knobs)):
            for choice in range(len(self.space.knobs[knob].choices)):
                setting = self.space.canonicalize(self.space.replace_choice(self.state.best, knob, choice))
                is_ruled_out = self.causes.find(self.space.build_params(setting)) is not None
                is_costly = choice in self.space.knobs[knob].costly
                if not is_costly and not is_ruled_out and setting not in self.state.judgements:
                    yield setting

    def close(self) -> None:
        """Terminate the incumbent."""
        if self._incumbent is not None:
            self._incumbent.entrant.leave()
            self._incumbent = None

    def _try_start(self, start: Setting, deadline: float) -> None:
        """Try a good start, without the values of it that are known to be rejected."""
        cause = self.causes.find(self.space.build_params(start))
        if cause is not None:
            stock = {name: get_value(self.space.base, name) for name in cause.values}
            start = self.space.find_nearest({**self.space.build_params(start), **stock})
        self._try_setting(start, deadline, self.space.describe(start), preferred=self._is_exact(start))

    def _try_in_turns(self, deadline: float) -> None:
        """Try the first choice of every knob, then the second of every knob, and so on.

        No knob waits for all choices of another one. A choice that is known to be rejected takes no turn.
        """
        # Unsetting what a good start has set seldom helps; it is tried in the second pass.
        waiting = {
            number: [choice for choice in range(1, len(knob.choices)) if choice not in knob.costly]
            for number, knob in enumerate(self.space.knobs)
        }
        while any(waiting.values()):
            for knob, choices in waiting.items():
                self._knob = knob
                if self.space.knobs[knob].ladders:
                    if choices:
                        self._walk_ladders(knob, deadline, is_first=True)
                    choices.clear()
                while choices and self._is_ruled_out(knob, choices[0]):
                    choices.pop(0)
                if choices:
                    self._try_choice(knob, choices.pop(0), deadline)

    def _is_ruled_out(self, knob: int, choice: int) -> bool:
        """Return whether a known cause rejects the choice; the settings that are avoided are counted."""
        return self.causes.avoid(self.space.canonicalize(self.space.replace_choice(self.state.best, knob, choice)))

    def _try_knob(self, knob: int, deadline: float) -> None:
        self._knob = knob
        if self.space.knobs[knob].ladders:
            self._walk_ladders(knob, deadline, is_first=False)
            return
        for choice in range(len(self.space.knobs[knob].choices)):
            if choice not in self.space.knobs[knob].costly:
                self._try_choice(knob, choice, deadline)

    def _walk_ladders(self, knob: int, deadline: float, *, is_first: bool) -> None:
        """Climb every ladder of the knob: its end, its middle if that lost, then neighbours of the best.

        A ladder that branches off another one is only climbed if the best is on it.
        """
        seen: set[int] = set()
        for ladder in self.space.knobs[knob].ladders:
            branches_off = ladder[0] in seen
            seen.update(ladder)
            if is_first and not branches_off:
                if not self._try_choice(knob, ladder[-1], deadline):
                    self._try_choice(knob, ladder[len(ladder) // 2], deadline)
            elif self.state.best[knob] not in ladder:
                continue
            while self._try_neighbours(knob, ladder, deadline):
                pass

    def _try_neighbours(self, knob: int, ladder: Sequence[int], deadline: float) -> bool:
        """Try the neighbours of the best on the ladder; return whether one won."""
        if self.state.best[knob] not in ladder:
            return False
        place = ladder.index(self.state.best[knob])
        neighbours = [ladder[i] for i in (place + 1, place - 1) if 0 <= i < len(ladder)]
        return any(self._try_choice(knob, choice, deadline) for choice in neighbours)

    def _try_choice(self, knob: int, choice: int, deadline: float) -> bool:
        """Try another choice of one knob of the best so far; return whether it won."""
        if choice == self.state.best[knob] or self._losses.get((knob, choice), 0.0) < HOPELESS_LOSS:
            return False
        if self._has_no_effect(knob):
            return False
        setting = self.space.canonicalize(self.space.replace_choice(self.state.best, knob, choice))
        text = self.space.knobs[knob].describe(choice)
        costly = choice in self.space.knobs[knob].costly
        won = self._try_setting(setting, deadline, text, costly=costly)
        judgement = self.state.judgements.get(setting)
        if judgement is not None and judgement.against == self.state.best:
            lost_by = judgement.score - self.state.score
            hopeless = judgement.outcome == "rejected" and judgement.category not in REFUSALS
            self._losses[knob, choice] = -math.inf if hopeless else lost_by
            if judgement.category == NO_EFFECT:
                self._losses[knob, choice] = -math.inf
                self._num_without_effect[knob] += 1
            # It may be feasible with another shape or execution.
            elif judgement.category == INFEASIBLE:
                needed = self.space.apply_needs(setting, knob)
                return self._try_setting(needed, deadline, self.space.describe(needed), costly=costly)
        return won

    def _has_no_effect(self, knob: int) -> bool:
        """Return whether two of its choices had no effect, because custom code overrides the knob."""
        return self._num_without_effect[knob] > 1

    def _try_setting(
        self, setting: Setting, deadline: float, text: str, *, costly: bool = False, preferred: bool = False
    ) -> bool:
        """Race a setting against the best so far; return whether it won. Equivalent settings race once.

        A preferred setting wins a tie, because it is a better starting point, like pinned processes. Knobs
        that it set without gain are unset later.
        """
        setting = self.space.canonicalize(setting)
        again = setting == self.space.default and self._is_default_tied
        is_known = setting in map(self.space.canonicalize, self.state.judgements)
        if setting == self.state.best or (is_known and not again) or self.causes.avoid(setting):
            return False
        usual_s = statistics.median(self._costs_s) if self._costs_s else 0.0
        lead = 0.0 if preferred else self._choose_min_lead(setting)
        is_tight = self.arena.read_clock() + usual_s * (COMPILE_COST_FACTOR if costly else 1.0) > deadline
        has_won = self._until_won and self.state.best != self.space.default
        if is_tight or has_won or not self._can_race_in_time():
            self._untried[text] = BUDGET_USED_UP
            return False
        self.watcher.report_candidate(setting)
        began = self.arena.read_clock()
        left_s = deadline - began
        full_limit_s = max(MIN_START_LIMIT_S, MAX_START_RATIO * usual_s, COMPILE_LIMIT_S if costly else 0.0)
        limit_s = min(full_limit_s, left_s, max(2 * usual_s, left_s * (1.0 if costly else START_SHARE)))
        late = began + RACE_SHARE * (deadline - began)
        judgement, racer = self._judge(setting, limit_s, late, preferred=preferred, min_lead=lead)
        # It ran out of budget, which says nothing against it.
        if judgement.category == "timeout" and limit_s < full_limit_s:
            self._untried[text] = ABANDONED.format(limit_s)
            return False
        if not costly:
            self._costs_s.append(self.arena.read_clock() - began)
        if racer is not None and lead > 0:
            settled = self._verify_with_second_start(judgement, racer, usual_s, deadline)
            # There was no time for a second start.
            if settled is None:
                self._untried[text] = BUDGET_USED_UP
                return False
            judgement, racer = settled
        is_tie = abs(judgement.score - self.state.score) <= judgement.half_width
        self._is_default_tied = (self._is_default_tied and not again) or (preferred and is_tie)
        self._record(judgement)
        if racer is None:
            return False
        self.close()
        self._incumbent = racer
        return True

    def _choose_min_lead(self, setting: Setting) -> float:
        """Return the lead it needs; above 0 if it only changes fine knobs that a good start has set."""
        best = self.state.best
        is_fine = [knob.name in FINE_KNOBS for knob in self.space.knobs]
        usual = self.space.canonicalize(
            tuple(self._usual_setting[knob] if fine else best[knob] for knob, fine in enumerate(is_fine))
        )
        changed = [knob for knob, choice in enumerate(setting) if choice != best[knob]]
        are_fine = all(is_fine[knob] for knob in changed)
        num_left = sum(best[knob] == usual[knob] for knob in changed)
        num_returned = sum(setting[knob] == usual[knob] for knob in changed)
        return MIN_FINE_LEAD if are_fine and num_left > num_returned else 0.0

    def _verify_with_second_start(
        self, judgement: Judgement, racer: Racer, usual_s: float, deadline: float
    ) -> tuple[Judgement, Racer | None] | None:
        """Race the winner against a second start of the best so far, whose first one may have been unlucky.

        Returns the final judgement, with the racer if it won; None if there is no time left.
        """
        best, left_s = self.state.judgements[self.state.best], deadline - self.arena.read_clock()
        if left_s <= max(best.start_s, usual_s):
            racer.entrant.leave()
            return None
        self.close()
        again: Entrant | None = None
        try:
            again = self.arena.enter(self.state.best, min(left_s, COMPILE_LIMIT_S))
            late = self.arena.read_clock() + RACE_SHARE * (deadline - self.arena.read_clock())
            verdict = run_race(
                racer, again, self.noise, min_lead=-MIN_FINE_LEAD, is_late=lambda: self.arena.read_clock() > late
            )
        except Rejection as problem:
            return self._handle_failed_second_start(judgement, racer, again, problem, left_s)
        if verdict.outcome != "won":
            again.leave()
            return judgement, racer
        racer.entrant.leave()
        self._incumbent = Racer(again, list(verdict.samplings))
        # All scores are relative to the first start of the default, which therefore stays.
        if best.setting != self.space.default:
            score, latency = (judgement.score + verdict.log_ratio, judgement.latency_score + verdict.log_latency)
            self._record(dataclasses.replace(best, score=score, latency_score=latency))
        return dataclasses.replace(judgement, outcome="tied", half_width=verdict.half_width), None

    def _handle_failed_second_start(
        self, judgement: Judgement, racer: Racer, again: Entrant | None, problem: Rejection, left_s: float
    ) -> tuple[Judgement, Racer | None] | None:
        """Handle a failure of the winner or of the second start of the best so far."""
        failed = racer.entrant if racer.has_failed else again
        if failed is not None:
            failed.leave()
        # Running out of budget says nothing against either of them.
        if problem.category == "timeout" and left_s < COMPILE_LIMIT_S:
            other = again if racer.has_failed else racer.entrant
            if other is not None:
                other.leave()
            return None
        if not racer.has_failed:
            return judgement, racer
        self._incumbent = Racer(again) if again is not None else None
        rejected = Judgement(judgement.setting, "rejected", category=problem.category, reason=problem.reason)
        return dataclasses.replace(rejected, against=self.state.best), None

    def _judge(
        self,
        setting: Setting,
        limit_s: float,
        late: float,
        *,
        preferred: bool,
        min_lead: float = 0.0,
        may_retry: bool = True,
    ) -> tuple[Judgement, Racer | None]:
        """Race the setting; return its judgement, and its racer if it won."""
        incumbent, best = self._ensure_incumbent(), self.state.best
        entrant: Entrant | None = None
        try:
            self.arena.prepare(itertools.chain((setting,), self._list_likely_next()))
            entrant = self.arena.enter(setting, limit_s)
            simpler = self.space.count_changed(setting) < self.space.count_changed(best)
            verdict = run_race(
                incumbent,
                entrant,
                self.noise,
                is_simpler=simpler or preferred,
                min_lead=min_lead,
                is_late=lambda: self.arena.read_clock() > late,
            )
        except Rejection as problem:
            if entrant is not None:
                entrant.leave()
            # The challenger did not fail: restart the best so far and retry.
            if incumbent.has_failed:
                self.close()
                if may_retry:
                    return self._judge(setting, limit_s, late, preferred=preferred, min_lead=min_lead, may_retry=False)
                problem = Rejection(NOT_NOW, f"the best setting so far failed twice during the race: {problem.reason}")
            return Judgement(setting, "rejected", category=problem.category, reason=problem.reason, against=best), None
        judgement = self._build_from_verdict(setting, verdict, entrant.start_s)
        if judgement.outcome == "won":
            return judgement, Racer(entrant, list(verdict.samplings))
        entrant.leave()
        return judgement, None

    def _build_from_verdict(self, setting: Setting, verdict: Verdict, start_s: float) -> Judgement:
        outcome, reason = str(verdict.outcome), ""
        best = self.state.judgements.get(self.state.best)
        latency_score = (best.latency_score if best else 0.0) + verdict.log_latency
        slack = max(LATENCY_SLACK, verdict.half_width)
        if outcome == "won" and self.bounded_latency and latency_score > slack:
            outcome, reason = "latency", "its latency is worse than the default's"
        return _build_judgement(
            verdict.samplings,
            setting,
            outcome,
            score=self.state.score + verdict.log_ratio,
            half_width=verdict.half_width,
            latency_score=latency_score,
            start_s=start_s,
            reason=reason,
            against=self.state.best,
        )

    def _can_race_in_time(self) -> bool:
        """Return whether the best so far is running, or can be restarted before the deadline."""
        left_s = self._deadline - self.arena.read_clock()
        best = self.state.judgements.get(self.state.best)
        if self._incumbent is None and best is not None and best.start_s > left_s:
            return False
        try:
            self._ensure_incumbent()
        except Rejection as problem:
            if problem.category == "timeout" and left_s < COMPILE_LIMIT_S:
                return False
            raise
        return self.arena.read_clock() < self._deadline

    def _ensure_incumbent(self, *, may_retry: bool = True) -> Racer:
        """Return the best so far as a racer; restart it if it is not running."""
        if self._incumbent is None:
            left_s = max(0.0, self._deadline - self.arena.read_clock())
            self._incumbent = Racer(self.arena.enter(self.state.best, min(left_s, COMPILE_LIMIT_S)))
        try:
            while len(self._incumbent.samplings) < 2:
                self._incumbent.take_sample()
        except Rejection:
            self.close()
            if not may_retry:
                raise
            return self._ensure_incumbent(may_retry=False)
        return self._incumbent

    def _record(self, judgement: Judgement) -> None:
        self._remember(judgement)
        self.watcher.report_judgement(judgement, self.state.best, self.state.score)

    def _remember(self, judgement: Judgement) -> None:
        # All scores are relative to the first judgement of the default, which therefore stays.
        if judgement.setting == self.space.default:
            self.state.judgements.setdefault(judgement.setting, judgement)
        else:
            self.state.judgements[judgement.setting] = judgement
        if judgement.outcome == "won":
            self.state.best = judgement.setting
        if judgement.outcome == "rejected":
            self.causes.learn_rejection(judgement.setting, judgement.category, judgement.reason)
        else:
            self.causes.learn_success(judgement.setting)


def _build_judgement(samplings: Sequence[Sampling], setting: Setting, outcome: str, **more: object) -> Judgement:
    """Build a judgement from the samplings of a setting."""
    return Judgement(
        setting,
        outcome,
        throughput=statistics.median(each.throughput for each in samplings),
        latency_s=statistics.median(each.latency_s for each in samplings),
        check_error=find_largest_error(each.check_error for each in samplings),
        compile_s=max(each.compile_s for each in samplings),
        setup_s=max(each.setup_s for each in samplings),
        **more,  # type: ignore[arg-type]
    )
