"""The search: knob after knob from a good start, each challenger raced against the best so far.

Why so and not by a sampler: knobs of this kind are few, discrete and act mostly by themselves, and starting a
setting costs more than a sampling. Coordinate steps need a handful of starts, and paired samplings of
processes that stay alive tell a few per cent apart where separate measurements drown them in drift.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

from corewise.spec.trial import NO_EFFECT, NOT_NOW
from corewise.tuner.arena import Arena, Entrant, Rejected, Sampling, largest_error
from corewise.tuner.found import Found, Judged, Watcher
from corewise.tuner.race import Noise, Racer, Verdict, race
from corewise.tuner.space import LeftOut, Setting, Space

MAX_PASSES = 8
MAX_PAIRS = 24  # of choices tried together after a pass that changed nothing
HOPELESS = -0.15  # a choice that lost by more is not tried again beside other choices
LATENCY_SLACK = 0.02  # a latency within this of the default's is not worse
FIRST_SAMPLINGS, FEWEST_SAMPLINGS, LONG_STEP_S = 3, 2, 0.5  # of the default; fewer where its steps are long
SLOWEST_START = 5.0  # times the usual, after which a candidate is given up
LEAST_LIMIT_S = 30.0
COSTLY_LIMIT_S = 240.0
COSTLY = 4.0  # times the usual cost, as a guess for what is compiled
RACE_SHARE = 0.125  # of the time left, after which a race that is not decided is not gone on with
# Knobs whose other choices seldom differ from what a good start has set by more than two starts of one
# setting differ from each other: to leave it asks for a lead, over two starts of the best so far.
FINE_KNOBS = frozenset({"allocator", "bind", "wait_policy"})
FINE_LEAD = 0.03  # over each of them
NOISY = 0.06  # what two samplings one after the other differ by; usually half of this or less


class Search:
    """One search; `run` may be interrupted, `found` then holds the best so far."""

    def __init__(
        self,
        space: Space,
        arena: Arena,
        watcher: Watcher,
        *,
        starts: Sequence[Setting],
        bounded_latency: bool,
        earlier: Sequence[Judged] = (),
    ) -> None:
        self.space, self.arena, self.watcher = space, arena, watcher
        self.starts, self.bounded_latency = starts, bounded_latency
        self.noise = Noise()
        self.found = Found(space.default)
        self._incumbent: Racer | None = None
        self._knob = 0  # that is being varied
        self._costs_s: list[float] = []
        self._losses: dict[tuple[int, int], float] = {}  # (knob, choice) -> how it did against an incumbent
        self._without_effect: dict[int, list[str]] = {}  # knob -> why choices of it change nothing
        self._untried: dict[str, None] = {}  # in words
        self._deadline = math.inf
        self._usual = space.default  # the best of the starts
        self._default_stands = False  # tied with a start that was preferred: it may be tried again
        for each in earlier:
            self._remember(each)

    def run_default(self, limit_s: float) -> Judged:
        """The default, entered and sampled; raises Rejected when it does not run at all."""
        known = self.found.judged.get(self.space.default)
        if known is not None:
            return known
        self.watcher.trying(self.space.default)
        began = self.arena.now()
        self.arena.expect((self.space.default, *self.starts))
        racer = Racer(self.arena.enter(self.space.default, limit_s))
        self._incumbent = racer
        while len(racer.samplings) < FIRST_SAMPLINGS:
            racer.run()
            if len(racer.samplings) == FEWEST_SAMPLINGS and racer.samplings[-1].latency_s > LONG_STEP_S:
                break
        self._costs_s.append(self.arena.now() - began)
        judged = _described(racer.samplings, self.space.default, "default", start_s=racer.entrant.start_s)
        self._keep(judged)
        return judged

    def run(self, deadline: float) -> Found:
        """Search until neither one knob nor two together change anything, or until the deadline."""
        self._deadline = deadline
        for start in self.starts:
            self._challenge(start, deadline, self.space.words(start), preferred=self._is_exact(start))
        if self.found.best == self.space.default:  # a start may lose by its layout alone
            for start in dict.fromkeys(map(self._without_layout, self.starts)):
                self._challenge(start, deadline, self.space.words(start), preferred=self._is_exact(start))
        self._usual = self.found.best
        for number in range(MAX_PASSES):
            before = self.found.best
            for knob in range(len(self.space.knobs)):
                self._vary(knob, deadline, is_first=number == 0)
            for knob, each in enumerate(self.space.knobs):  # last: what is compiled takes long
                for choice in sorted(each.costly):
                    self._challenge_choice(knob, choice, deadline)
            if self._untried:
                break
            is_settled = number > 0 and self.found.best == before
            if is_settled and not self._vary_two(deadline):
                break
        self.found.finished = not self._untried
        self.close()
        reason = "no time was left; the same command again goes on, or give a longer --budget"
        self.found.untried = tuple(LeftOut(words, reason) for words in self._untried)
        return self.found

    def doubt(self) -> str:
        """What to know of a search among samplings that scattered; empty where they did not."""
        if self.noise.sd <= NOISY:
            return ""
        return (
            f"the machine was not quiet: two samplings one after the other differed by {self.noise.sd:.0%}, "
            "so that settings which lie closer together were hardly told apart; a longer --budget or a "
            "quieter machine helps"
        )

    def _is_exact(self, setting: Setting) -> bool:
        """Whether it computes with as many digits as the default."""
        precision = self.space.index("precision")
        return precision is None or setting[precision] == 0

    def _without_layout(self, setting: Setting) -> Setting:
        layout = self.space.index("memory_format")
        return setting if layout is None else self.space.changed(setting, layout, 0)

    def _vary_two(self, deadline: float) -> bool:
        """True when two knobs changed together have won: each alone may lose what both gain together.

        Pairs of choices that lost least alone come first; so many are tried.
        """
        best, num_tried = self.found.best, 0
        for changes in self._pairs():
            setting = best
            for knob, choice in changes:
                setting = self.space.changed(setting, knob, choice)
            setting = self.space.alike(setting)
            if setting in self.found.judged:
                continue
            if num_tried == MAX_PAIRS:
                break
            num_tried += 1
            costly = any(choice in self.space.knobs[knob].costly for knob, choice in changes)
            if self._challenge(setting, deadline, self.space.words(setting), costly=costly):
                return True
        return False

    def _pairs(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Changes of two knobs of the best so far, those that lost least one by one first."""
        best = self.found.best
        alone = {at: loss for at, loss in self._losses.items() if loss > -math.inf and best[at[0]] != at[1]}
        found = [pair for pair in itertools.combinations(alone, 2) if pair[0][0] != pair[1][0]]
        return sorted(found, key=lambda pair: -alone[pair[0]] - alone[pair[1]])

    def _likely_next(self) -> Iterator[Setting]:
        """Settings not yet judged that come next if the best so far stays what it is."""
        for knob in range(self._knob, len(self.space.knobs)):
            for choice in range(len(self.space.knobs[knob].choices)):
                setting = self.space.alike(self.space.changed(self.found.best, knob, choice))
                if choice not in self.space.knobs[knob].costly and setting not in self.found.judged:
                    yield setting

    def close(self) -> None:
        """End what is still alive."""
        if self._incumbent is not None:
            self._incumbent.entrant.leave()
            self._incumbent = None

    def _vary(self, knob: int, deadline: float, *, is_first: bool) -> None:
        self._knob = knob
        if self.space.knobs[knob].ladders:
            self._climb(knob, deadline, is_first=is_first)
            return
        # What a good start has set is seldom better unset: that is tried in the second pass.
        for choice in range(1 if is_first else 0, len(self.space.knobs[knob].choices)):
            if choice not in self.space.knobs[knob].costly:
                self._challenge_choice(knob, choice, deadline)

    def _climb(self, knob: int, deadline: float, *, is_first: bool) -> None:
        """Up every ladder of the knob: its end, its middle where that lost, then neighbours of the best.

        A ladder that branches off another is only followed from where the best stands on it.
        """
        seen: set[int] = set()
        for ladder in self.space.knobs[knob].ladders:
            branches_off = ladder[0] in seen
            seen.update(ladder)
            if is_first and not branches_off:
                if not self._challenge_choice(knob, ladder[-1], deadline):
                    self._challenge_choice(knob, ladder[len(ladder) // 2], deadline)
            elif self.found.best[knob] not in ladder:
                continue
            while self._step_up(knob, ladder, deadline):
                pass

    def _step_up(self, knob: int, ladder: Sequence[int], deadline: float) -> bool:
        """True when a neighbour on the ladder has won."""
        if self.found.best[knob] not in ladder:
            return False
        place = ladder.index(self.found.best[knob])
        neighbours = [ladder[i] for i in (place + 1, place - 1) if 0 <= i < len(ladder)]
        return any(self._challenge_choice(knob, choice, deadline) for choice in neighbours)

    def _challenge_choice(self, knob: int, choice: int, deadline: float) -> bool:
        """True when the best so far with another choice of one knob has won."""
        if choice == self.found.best[knob] or self._losses.get((knob, choice), 0.0) < HOPELESS:
            return False
        if self._changes_nothing(knob):
            return False
        setting = self.space.alike(self.space.changed(self.found.best, knob, choice))
        words = self.space.knobs[knob].words(choice)
        costly = choice in self.space.knobs[knob].costly
        won = self._challenge(setting, deadline, words, costly=costly)
        judged = self.found.judged.get(setting)
        if judged is not None and judged.against == self.found.best:
            lost_by = judged.score - self.found.score
            hopeless = judged.outcome == "rejected" and judged.kind not in ("infeasible", NOT_NOW)
            self._losses[knob, choice] = -math.inf if hopeless else lost_by
            if NO_EFFECT in judged.reason:
                self._losses[knob, choice] = -math.inf
                self._without_effect.setdefault(knob, []).append(judged.reason.partition(NO_EFFECT)[2])
            elif judged.kind == "infeasible":  # it may go with another shape or way to execute
                needed = self.space.as_needed(setting, knob)
                return self._challenge(needed, deadline, self.space.words(needed), costly=costly)
        return won

    def _changes_nothing(self, knob: int) -> bool:
        """Whether two choices of it were refused for one reason: a step of one's own decides that itself."""
        reasons = self._without_effect.get(knob, [])
        return len(set(reasons)) < len(reasons)

    def _challenge(
        self,
        setting: Setting,
        deadline: float,
        words: str,
        *,
        costly: bool = False,
        preferred: bool = False,
    ) -> bool:
        """True when the setting has won over the best so far; what runs the same way is judged only once.

        One that is preferred wins a tie: it is a better place to go on from, such as pinned processes, and
        what it has set for nothing is unset later.
        """
        setting = self.space.alike(setting)  # the simplest that runs this way
        again = setting == self.space.default and self._default_stands
        is_known = setting in map(self.space.alike, self.found.judged)
        if setting == self.found.best or (is_known and not again):
            return False
        usual_s = statistics.median(self._costs_s) if self._costs_s else 0.0
        lead = 0.0 if preferred else self._least_lead(setting)
        is_tight = self.arena.now() + usual_s * (COSTLY if costly else 1.0) > deadline
        if is_tight or not self._stands_in_time():
            self._untried[words] = None
            return False
        self.watcher.trying(setting)
        began = self.arena.now()
        patience_s = max(LEAST_LIMIT_S, SLOWEST_START * usual_s, COSTLY_LIMIT_S if costly else 0.0)
        limit_s = min(patience_s, deadline - began)
        late = began + RACE_SHARE * (deadline - began)
        judged, racer = self._judge(setting, limit_s, late, preferred=preferred, least_lead=lead)
        if judged.kind == "timeout" and limit_s < patience_s:  # for want of time: nothing is said against it
            self._untried[words] = None
            return False
        if not costly:
            self._costs_s.append(self.arena.now() - began)
        if racer is not None and lead > 0:
            settled = self._against_second_start(judged, racer, usual_s, deadline)
            if settled is None:  # for want of time
                self._untried[words] = None
                return False
            judged, racer = settled
        is_tie = abs(judged.score - self.found.score) <= judged.half_width
        self._default_stands = (self._default_stands and not again) or (preferred and is_tie)
        self._keep(judged)
        if racer is None:
            return False
        self.close()
        self._incumbent = racer
        return True

    def _least_lead(self, setting: Setting) -> float:
        """By how much it must be ahead; above 0 where all it does is leave what a good start has set."""
        best = self.found.best
        is_fine = [knob.name in FINE_KNOBS for knob in self.space.knobs]
        usual = self.space.alike(
            tuple(self._usual[knob] if fine else best[knob] for knob, fine in enumerate(is_fine))
        )
        changed = [knob for knob, choice in enumerate(setting) if choice != best[knob]]
        are_fine = all(is_fine[knob] for knob in changed)
        num_left = sum(best[knob] == usual[knob] for knob in changed)
        num_returned = sum(setting[knob] == usual[knob] for knob in changed)
        return FINE_LEAD if are_fine and num_left > num_returned else 0.0

    def _against_second_start(
        self, judged: Judged, racer: Racer, usual_s: float, deadline: float
    ) -> tuple[Judged, Racer | None] | None:
        """The winner against another start of the best so far, whose first may have been unlucky.

        None where there is no time for that.
        """
        best, left_s = self.found.judged[self.found.best], deadline - self.arena.now()
        if left_s <= max(best.start_s, usual_s):
            racer.entrant.leave()
            return None
        self.close()
        again: Entrant | None = None
        try:
            again = self.arena.enter(self.found.best, min(left_s, COSTLY_LIMIT_S))
            late = self.arena.now() + RACE_SHARE * (deadline - self.arena.now())
            verdict = race(
                racer,
                again,
                self.noise,
                least_lead=-FINE_LEAD,
                is_late=lambda: self.arena.now() > late,
            )
        except Rejected as problem:
            return self._without_second_start(judged, racer, again, problem, left_s)
        if verdict.outcome != "won":
            again.leave()
            return judged, racer
        racer.entrant.leave()
        self._incumbent = Racer(again, list(verdict.samplings))
        if best.setting != self.space.default:  # what all scores are over: its first start stays
            score, latency = judged.score + verdict.log_ratio, judged.latency_score + verdict.log_latency
            self._keep(dataclasses.replace(best, score=score, latency_score=latency))
        return dataclasses.replace(judged, outcome="tied", half_width=verdict.half_width), None

    def _without_second_start(
        self, judged: Judged, racer: Racer, again: Entrant | None, problem: Rejected, left_s: float
    ) -> tuple[Judged, Racer | None] | None:
        """What follows where the winner or the second start of the best so far has failed."""
        failed = racer.entrant if racer.has_failed else again
        if failed is not None:
            failed.leave()
        if problem.kind == "timeout" and left_s < COSTLY_LIMIT_S:  # nothing is said against either
            other = again if racer.has_failed else racer.entrant
            if other is not None:
                other.leave()
            return None
        if not racer.has_failed:
            return judged, racer
        self._incumbent = Racer(again) if again is not None else None
        told = Judged(judged.setting, "rejected", kind=problem.kind, reason=problem.reason)
        return dataclasses.replace(told, against=self.found.best), None

    def _judge(
        self,
        setting: Setting,
        limit_s: float,
        late: float,
        *,
        preferred: bool,
        least_lead: float = 0.0,
        once_more: bool = True,
    ) -> tuple[Judged, Racer | None]:
        """What becomes of the setting, and its racer when it has won."""
        incumbent, best = self._standing(), self.found.best
        entrant: Entrant | None = None
        try:
            self.arena.expect(itertools.chain((setting,), self._likely_next()))
            entrant = self.arena.enter(setting, limit_s)
            simpler = self.space.num_changed(setting) < self.space.num_changed(best)
            verdict = race(
                incumbent,
                entrant,
                self.noise,
                is_simpler=simpler or preferred,
                least_lead=least_lead,
                is_late=lambda: self.arena.now() > late,
            )
        except Rejected as problem:
            if entrant is not None:
                entrant.leave()
            if incumbent.has_failed:  # not the challenger's fault: the best so far starts again
                self.close()
                if once_more:
                    return self._judge(
                        setting, limit_s, late, preferred=preferred, least_lead=least_lead, once_more=False
                    )
                problem = Rejected(NOT_NOW, f"the best so far failed twice beside it: {problem.reason}")
            return Judged(setting, "rejected", kind=problem.kind, reason=problem.reason, against=best), None
        judged = self._of_verdict(setting, verdict, entrant.start_s)
        if judged.outcome == "won":
            return judged, Racer(entrant, list(verdict.samplings))
        entrant.leave()
        return judged, None

    def _of_verdict(self, setting: Setting, verdict: Verdict, start_s: float) -> Judged:
        outcome, reason = str(verdict.outcome), ""
        best = self.found.judged.get(self.found.best)
        latency_score = (best.latency_score if best else 0.0) + verdict.log_latency
        slack = max(LATENCY_SLACK, verdict.half_width)
        if outcome == "won" and self.bounded_latency and latency_score > slack:
            outcome, reason = "latency", "its latency is worse than the default's"
        return _described(
            verdict.samplings,
            setting,
            outcome,
            score=self.found.score + verdict.log_ratio,
            half_width=verdict.half_width,
            latency_score=latency_score,
            start_s=start_s,
            reason=reason,
            against=self.found.best,
        )

    def _stands_in_time(self) -> bool:
        """Whether the best so far runs before the deadline, where it has to be started again."""
        left_s = self._deadline - self.arena.now()
        best = self.found.judged.get(self.found.best)
        if self._incumbent is None and best is not None and best.start_s > left_s:
            return False
        try:
            self._standing()
        except Rejected as problem:
            if problem.kind == "timeout" and left_s < COSTLY_LIMIT_S:
                return False
            raise
        return self.arena.now() < self._deadline

    def _standing(self, *, once_more: bool = True) -> Racer:
        """The best so far, started again where an earlier search or its own end has left none."""
        if self._incumbent is None:
            left_s = max(0.0, self._deadline - self.arena.now())
            self._incumbent = Racer(self.arena.enter(self.found.best, min(left_s, COSTLY_LIMIT_S)))
        try:
            while len(self._incumbent.samplings) < 2:
                self._incumbent.run()
        except Rejected:
            self.close()
            if not once_more:
                raise
            return self._standing(once_more=False)
        return self._incumbent

    def _keep(self, judged: Judged) -> None:
        self._remember(judged)
        self.watcher.judged(judged, self.found.best, self.found.score)

    def _remember(self, judged: Judged) -> None:
        if judged.setting == self.space.default:  # what all scores are over: the first measure stays
            self.found.judged.setdefault(judged.setting, judged)
        else:
            self.found.judged[judged.setting] = judged
        if judged.outcome == "won":
            self.found.best = judged.setting


def _described(samplings: Sequence[Sampling], setting: Setting, outcome: str, **more: object) -> Judged:
    """What the samplings of a setting say of it."""
    return Judged(
        setting,
        outcome,
        throughput=statistics.median(each.throughput for each in samplings),
        latency_s=statistics.median(each.latency_s for each in samplings),
        check_error=largest_error(each.check_error for each in samplings),
        compile_s=max(each.compile_s for each in samplings),
        **more,  # type: ignore[arg-type]
    )
