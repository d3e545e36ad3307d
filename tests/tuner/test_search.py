"""The search on made-up arenas, where the best setting is known."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from made_arena import Heard, MadeArena, Rule, refuse, space

from corewise.spec.trial import NOT_NOW
from corewise.tuner.found import Found
from corewise.tuner.search import RACE_SHARE, Search
from corewise.tuner.space import Knob, Setting, Space

LETTERS = space(a=(0, 1, 2), b=(0, 1), c=(0, 1))


def found_in(arena: MadeArena, *, deadline: float = 1e6, start: Setting | None = None, **more: Any) -> Found:
    search = Search(
        arena.space,
        arena,
        more.pop("watcher", Heard()),
        starts=[start or arena.space.default],
        bounded_latency=more.pop("bounded_latency", False),
        **more,
    )
    search.run_default(100)
    return search.run(deadline)


def summed(**gains: Mapping[Any, float]) -> Rule:
    return lambda params: sum(gain[params[name]] for name, gain in gains.items())


GAINS = summed(a={0: 0.0, 1: -0.3, 2: 0.4}, b={0: 0.0, 1: 0.2}, c={0: 0.0, 1: -0.05})


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_independent_knobs_is_found_through_noise(seed: int) -> None:
    found = found_in(MadeArena(LETTERS, GAINS, noise=0.02, seed=seed))
    assert found.best == (2, 1, 0)
    assert found.finished
    assert found.score == pytest.approx(0.6, abs=0.08)


@pytest.mark.parametrize(("noise", "said"), [(0.01, ""), (0.1, "the machine was not quiet: two samplings")])
def test_a_search_among_samplings_that_scatter_says_so(noise: float, said: str) -> None:
    arena = MadeArena(LETTERS, summed(a={0: 0, 1: 0, 2: 0}, b={0: 0, 1: 0}, c={0: 0, 1: 0}), noise=noise)
    search = Search(LETTERS, arena, Heard(), starts=[], bounded_latency=False)
    search.run_default(100)
    search.run(1e6)
    assert search.doubt()[: len(said) or None] == said


def test_no_more_than_two_entrants_are_alive_and_none_in_the_end() -> None:
    arena = MadeArena(LETTERS, GAINS)
    found_in(arena)
    assert (arena.most_alive, arena.num_alive) == (2, 0)


def test_no_setting_is_entered_twice() -> None:
    arena = MadeArena(LETTERS, GAINS, noise=0.01)
    found_in(arena)
    assert len(arena.entered) == len(set(arena.entered))


def test_a_knob_that_only_helps_beside_another_is_found_by_the_second_pass() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return (0.3 if params["b"] else 0.0) + (0.3 if params["a"] == 1 and params["b"] else 0.0)

    assert found_in(MadeArena(LETTERS, rule)).best == (1, 1, 0)


def test_two_knobs_that_only_help_together_are_found() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return 0.3 if params["a"] == 1 and params["b"] else -0.1 * bool(params["a"]) - 0.1 * params["b"]

    assert found_in(MadeArena(LETTERS, rule, noise=0.005)).best == (1, 1, 0)


def test_what_makes_no_difference_is_left_as_it_is() -> None:
    found = found_in(MadeArena(LETTERS, lambda params: 0.0, noise=0.005), start=(2, 1, 1))
    assert found.best == LETTERS.default
    assert (1, 0, 0) in found.tied()


def test_a_start_with_useless_knobs_is_made_simpler() -> None:
    rule = summed(a={0: 0.0, 1: 0.0, 2: 0.4}, b={0: 0.0, 1: 0.0}, c={0: 0.0, 1: 0.0})
    assert found_in(MadeArena(LETTERS, rule, noise=0.002), start=(2, 1, 1)).best == (2, 0, 0)


def test_a_rejected_setting_never_wins_and_keeps_its_reason() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["a"] == 2:
            return refuse("check", "wrong numbers: error 1 against float64; 0.1 is allowed")
        return GAINS(params)

    found = found_in(MadeArena(LETTERS, rule))
    assert found.best == (0, 1, 0)
    [rejected] = {each.reason for each in found.judged.values() if each.outcome == "rejected"}
    assert rejected.startswith("wrong numbers")


def test_a_precision_that_does_not_go_with_the_best_execution_is_tried_without_it() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["precision"] == "int8" and params["execution"] != "eager":
            refuse("infeasible", "int8 brings its own")
        return {"float32": 0.0, "int8": 0.9}[params["precision"]] + 0.3 * (params["execution"] == "frozen")

    precision, execution = space(precision=("float32", "int8"), execution=("eager", "frozen")).knobs
    precision = replace(precision, needs={1: {"execution": "eager"}})
    arena = MadeArena(Space({}, (precision, execution)), rule)
    assert found_in(arena, start=(0, 1)).best == (1, 0)
    assert (1, 0) in arena.entered[:4]  # at once, not as one of many pairs in the end


def test_a_way_to_execute_that_needs_one_process_is_tried_with_one() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["execution"] == "malleable" and (params["processes"] > 1 or params["bind"] == "core"):
            refuse("infeasible", "one process")
        gains = {
            "eager": 0.2 * (params["processes"] - 1) + 0.1 * (params["bind"] == "core"),
            "malleable": 2.0,
        }
        return gains[params["execution"]]

    knobs = space(processes=(1, 2, 4), bind=("none", "rank", "core"), execution=("eager", "malleable")).knobs
    execution = replace(knobs[2], needs={1: {"processes": 1, "bind": "rank"}})
    arena = MadeArena(Space({}, (*knobs[:2], execution)), rule)
    assert found_in(arena).best in ((0, 0, 1), (0, 1, 1))
    assert (0, 1, 1) in arena.entered


def test_a_choice_that_failed_is_not_tried_again_beside_others() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return refuse("crash", "it died") if params["a"] == 1 else GAINS(params)

    arena = MadeArena(LETTERS, rule)
    found_in(arena)
    assert sum(setting[0] == 1 for setting in arena.entered) == 1


def test_a_setting_with_worse_latency_may_not_win_where_latency_is_bounded() -> None:
    arena = MadeArena(LETTERS, GAINS, latency=lambda params: 2.0 if params["a"] == 2 else 1.0)
    assert found_in(arena, bounded_latency=True).best == (0, 1, 0)
    assert found_in(replace(arena, entered=[])).best == (2, 1, 0)


def test_the_deadline_ends_the_search_with_what_was_not_tried() -> None:
    found = found_in(MadeArena(LETTERS, GAINS), deadline=5.0)
    assert not found.finished
    assert found.untried
    assert "no time" in found.untried[0].reason


def test_a_search_goes_on_from_what_an_earlier_one_judged() -> None:
    heard = Heard()
    first = found_in(MadeArena(LETTERS, GAINS), deadline=9.0, watcher=heard)
    assert not first.finished
    arena = MadeArena(LETTERS, GAINS)
    second = found_in(arena, earlier=heard.found)
    assert second.best == (2, 1, 0)
    assert second.finished
    again = set(arena.entered) & {each.setting for each in heard.found}
    assert again <= {first.best}  # it is raced against, so it is started once more


def shapes() -> Space:
    counts = (1, 2, 4, 8, 16)
    choices = tuple({"processes": p, "threads": 16 // p} for p in counts)
    return Space({}, (Knob("shape", choices, ladders=(tuple(range(len(counts))),)),))


@pytest.mark.parametrize("peak", [1, 2, 4, 8, 16])
def test_a_ladder_is_climbed_to_its_peak(peak: int) -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return -0.15 * abs(math.log2(params["processes"] / peak))

    assert shapes().params(found_in(MadeArena(shapes(), rule, noise=0.01)).best)["processes"] == peak


def test_a_ladder_that_branches_off_is_left_where_its_first_step_loses() -> None:
    choices = tuple({"threads": num} for num in (16, 8, 4, 2, 1))
    fewer = Space({}, (Knob("shape", choices, ladders=((0,), (0, 1, 2, 3, 4))),))
    arena = MadeArena(fewer, lambda params: math.log(params["threads"] / 16))
    assert found_in(arena).best == (0,)
    assert arena.entered == [(0,), (1,)]


@pytest.mark.parametrize("num_samplings", [1, 2])  # it dies before the next race, or in it
def test_a_dead_incumbent_is_started_again(num_samplings: int) -> None:
    class Dying(MadeArena):
        died = False

        def enter(self, setting: Setting, limit_s: float) -> Any:
            entrant = super().enter(setting, limit_s)
            if setting == (2, 0, 0) and not self.died:
                self.died, sample = True, entrant.sample

                def fail_later() -> Any:
                    return sample() if entrant.num_samplings < num_samplings else refuse("memory", "killed")

                entrant.sample = fail_later  # type: ignore[method-assign]
            return entrant

    arena = Dying(LETTERS, GAINS)
    assert found_in(arena).best == (2, 1, 0)
    assert arena.entered.count((2, 0, 0)) == 2


def test_an_incumbent_that_dies_twice_beside_a_challenger_is_not_told_as_the_challengers_fault() -> None:
    class Dying(MadeArena):
        def enter(self, setting: Setting, limit_s: float) -> Any:
            entrant = super().enter(setting, limit_s)
            sample = entrant.sample

            def fail_beside() -> Any:
                is_beside = setting == (0,) and self.num_alive == 2
                return refuse("killed", "signal 9") if is_beside else sample()

            entrant.sample = fail_beside  # type: ignore[method-assign]
            return entrant

    found = found_in(Dying(space(a=(0, 1)), lambda params: 0.5 * params["a"]))
    judged = found.judged[(1,)]
    assert found.best == (0,)
    assert (judged.kind, judged.outcome) == (NOT_NOW, "rejected")
    assert judged.reason == "the best so far failed twice beside it: signal 9"


def test_what_enters_is_told_before_with_what_is_likely_to_follow() -> None:
    arena = MadeArena(LETTERS, GAINS)
    found_in(arena)
    assert set(arena.entered) < set(arena.expected)


def test_what_the_start_has_set_is_unset_after_all_else_was_tried() -> None:
    arena = MadeArena(LETTERS, GAINS)
    found_in(arena, start=(2, 0, 0))
    unset = [setting for setting in arena.entered[1:] if setting[0] == 0]
    assert unset[0] == (0, 1, 0)
    assert arena.entered.index((2, 1, 1)) < arena.entered.index((0, 1, 0))


@pytest.mark.parametrize("sampling_s", [0.1, 3.0])  # starting takes most of the time, or sampling
@pytest.mark.parametrize("deadline", [20.0, 45.0, 90.0, 300.0])
def test_races_that_stay_tied_do_not_overrun_the_deadline_by_more_than_one(
    sampling_s: float, deadline: float
) -> None:
    wide = space(**dict.fromkeys("abcdefgh", (0, 1, 2)))
    for seed in range(10):
        arena = MadeArena(wide, lambda params: 0.0, noise=0.03, seed=seed, sampling_s=sampling_s)
        found = found_in(arena, deadline=deadline, start=(1,) * 8)
        longest_s = max(deadline * RACE_SHARE, 1.0) + 3 * sampling_s
        assert arena.seconds < deadline + longest_s
        assert found.finished or found.untried


def test_what_starts_too_slowly_for_the_time_left_ends_with_the_deadline_and_is_tried_again() -> None:
    compiled = Knob("a", ({"a": 0}, {"a": 1}), costly=frozenset((1,)))
    slow = Space({}, (compiled, Knob("b", ({"b": 0}, {"b": 1}))))

    def start(params: Mapping[str, Any]) -> float:
        return 100.0 if params["a"] else 1.0

    heard = Heard()
    rule = summed(a={0: 0.0, 1: 0.5}, b={0: 0.0, 1: 0.2})
    arena = MadeArena(slow, rule, start=start)
    first = found_in(arena, deadline=30.0, watcher=heard)
    assert arena.seconds < 31.0
    assert [each.what for each in first.untried] == ["a 1"]
    assert not any(each.outcome == "rejected" for each in heard.found)
    assert found_in(MadeArena(slow, rule, start=start), earlier=heard.found).best == (1, 1)


@pytest.mark.parametrize("start_s", [0.0, 100.0], ids=["that is not known to be slow", "that is"])
def test_a_best_that_starts_too_slowly_for_the_time_left_is_not_waited_for(start_s: float) -> None:
    heard = Heard()
    found_in(MadeArena(LETTERS, GAINS), deadline=9.0, watcher=heard)
    earlier = [replace(each, start_s=start_s) for each in heard.found]
    arena = MadeArena(LETTERS, GAINS, start=lambda params: 100.0)
    found = found_in(arena, deadline=20.0, earlier=earlier)
    assert arena.seconds == pytest.approx(0.0 if start_s else 20.0)
    assert found.untried
    assert found.best == next(each.setting for each in reversed(earlier) if each.outcome == "won")


def test_a_start_that_ties_is_gone_on_from_and_then_made_simpler() -> None:
    def rule(params: Mapping[str, Any]) -> float:  # c alone gives nothing, beside a it gives much
        return 0.3 if params["a"] == 2 and params["c"] else -0.1 * (params["a"] == 2)

    arena = MadeArena(LETTERS, rule, noise=0.002)
    found = found_in(arena, start=(0, 1, 1))
    assert found.best == (2, 0, 1)
    assert arena.entered[2] == (1, 1, 1)  # the first knob is varied beside what the start has set


def test_the_default_is_raced_again_where_a_start_was_only_preferred() -> None:
    arena = MadeArena(LETTERS, lambda params: 0.0, noise=0.005)
    found = found_in(arena, start=(0, 0, 1))
    assert found.best == LETTERS.default
    assert arena.entered.count(LETTERS.default) == 2
    assert found.judged[LETTERS.default].outcome == "default"


def test_a_start_that_loses_by_its_layout_is_tried_without_it() -> None:
    images = space(memory_format=("contiguous", "channels_last"), c=(0, 1))

    def rule(params: Mapping[str, Any]) -> float:
        return (-0.4 if params["memory_format"] == "channels_last" else 0.0) + 0.1 * params["c"]

    arena = MadeArena(images, rule)
    assert found_in(arena, start=(1, 1)).best == (0, 1)
    assert arena.entered[:3] == [(0, 0), (1, 1), (0, 1)]


FINE = space(shape=("1x2", "2x1"), allocator=("default", "tcmalloc", "retain"))
BY_HAND = (0, 1)


@pytest.mark.parametrize(("gain", "best"), [(0.02, (0, 1)), (-0.02, (0, 1)), (0.08, (0, 2))])
def test_what_a_start_has_set_of_a_fine_knob_is_left_for_a_lead_alone(gain: float, best: Setting) -> None:
    rule = summed(
        shape={"1x2": 0.0, "2x1": -0.3}, allocator={"default": 0.0, "tcmalloc": 0.0, "retain": gain}
    )
    assert found_in(MadeArena(FINE, rule, noise=0.002), start=BY_HAND).best == best


def test_a_start_that_was_unlucky_gives_up_no_fine_knob() -> None:
    """Others may lead it; another start of the same setting then shows that it was the start."""

    def luck(setting: Setting, number: int) -> float:
        return -0.1 if setting == BY_HAND and number == 1 else 0.0

    rule = summed(shape={"1x2": 0.0, "2x1": -0.3}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0})
    arena = MadeArena(FINE, rule, noise=0.002, luck=luck)
    heard = Heard()
    assert found_in(arena, start=BY_HAND, watcher=heard).best == BY_HAND
    assert arena.entered.count(BY_HAND) == 2
    assert (arena.most_alive, arena.num_alive) == (2, 0)
    [retain] = [each for each in heard.found if each.setting == (0, 2)]
    assert retain.outcome == "tied"


def test_a_knob_that_is_not_fine_asks_for_no_second_start() -> None:
    def luck(setting: Setting, number: int) -> float:
        return -0.1 if setting == BY_HAND and number == 1 else 0.0

    rule = summed(
        shape={"1x2": 0.0, "2x1": 0.02}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": -0.2}
    )
    arena = MadeArena(FINE, rule, noise=0.002, luck=luck)
    assert found_in(arena, start=BY_HAND).best == (1, 1)
    assert arena.entered.count(BY_HAND) == 1


def test_a_best_that_does_not_start_again_gives_way() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["allocator"] == "tcmalloc" and arena.entered.count(BY_HAND) == 2:
            return refuse("error", "it ended with 1")
        return 0.1 if params["allocator"] == "retain" else 0.0

    arena = MadeArena(FINE, rule, noise=0.002)
    assert found_in(arena, start=BY_HAND).best[1] == 2
    assert arena.num_alive == 0


def test_without_time_for_a_second_start_a_fine_knob_stays() -> None:
    rule = summed(
        shape={"1x2": 0.0, "2x1": -0.5}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0.1}
    )
    long = MadeArena(FINE, rule, noise=0.002)
    assert found_in(long, start=BY_HAND).best == (0, 2)
    number = long.entered.index((0, 2))
    short = MadeArena(FINE, rule, noise=0.002)
    found = found_in(short, start=BY_HAND, deadline=number + 2.0)
    assert found.best == BY_HAND
    assert short.entered.count(BY_HAND) == 1
    assert short.num_alive == 0
    assert not found.finished
    assert (0, 2) not in found.judged, "a search that goes on tries it again"
    later = found_in(MadeArena(FINE, rule, noise=0.002), start=BY_HAND, earlier=tuple(found.judged.values()))
    assert later.best == (0, 2)


def test_a_second_start_that_takes_too_long_for_the_time_left_decides_nothing() -> None:
    rule = summed(
        shape={"1x2": 0.0, "2x1": -0.5}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0.1}
    )

    def start(params: Mapping[str, Any]) -> float:  # the second of the hand setting takes four seconds
        return 4.0 if params["allocator"] == "tcmalloc" and arena.entered.count(BY_HAND) == 1 else 1.0

    for deadline in (6.0, 6.5, 7.0, 7.5, 8.0):
        arena = MadeArena(FINE, rule, noise=0.002)
        arena.start = start
        found = found_in(arena, start=BY_HAND, deadline=deadline)
        assert arena.num_alive == 0
        if arena.entered.count(BY_HAND) == 2 and arena.seconds <= deadline + 0.5:
            assert found.best == BY_HAND
            assert "allocator retain" in {each.what for each in found.untried}


def test_the_score_of_an_unlucky_start_is_mended_by_the_second() -> None:
    def luck(setting: Setting, number: int) -> float:
        return -0.1 if setting == BY_HAND and number == 1 else 0.0

    rule = summed(shape={"1x2": 0.0, "2x1": -0.3}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0})
    found = found_in(MadeArena(FINE, rule, noise=0.002, luck=luck), start=BY_HAND)
    assert found.best == BY_HAND
    assert found.score == pytest.approx(0.2, abs=0.02)
    assert found.judged[BY_HAND].latency_score == pytest.approx(-0.2, abs=0.02)
    assert found.judged[0, 2].score == pytest.approx(0.2, abs=0.02)
    assert FINE.default not in found.tied()


SHAPES = Knob("shape", ({"processes": 1, "threads": 2}, {"processes": 2, "threads": 1}))
PINNED = space(bind=("none", "rank", "core"), wait_policy=("default", "active", "passive"))
PROCESSES = Space({}, (SHAPES, *PINNED.knobs))


@pytest.mark.parametrize(
    ("setting", "alike"),
    [
        ((0, 2, 1), (0, 2, 1)),  # two threads wait for each other
        ((1, 2, 1), (1, 1, 0)),
        ((1, 1, 2), (1, 1, 0)),
        ((1, 0, 2), (1, 0, 0)),  # one that is not pinned may wander
    ],
)
def test_settings_of_one_thread_run_alike(setting: Setting, alike: Setting) -> None:
    assert PROCESSES.alike(setting) == alike
    assert PROCESSES.alike(alike) == alike


def test_what_runs_the_same_way_is_entered_once() -> None:
    arena = MadeArena(PROCESSES, lambda params: 0.5 * (params["threads"] == 1), noise=0.002)
    found = found_in(arena, start=(0, 1, 0))
    assert found.best == (1, 1, 0)
    assert {each for each in arena.entered if each[0] == 1} == {(1, 1, 0), (1, 0, 0)}


def test_what_one_thread_has_no_use_for_is_not_kept() -> None:
    arena = MadeArena(PROCESSES, lambda params: 0.5 * (params["threads"] == 1), noise=0.002)
    assert found_in(arena, start=(0, 2, 1)).best == (1, 1, 0)


def test_a_knob_that_changes_nothing_of_the_work_is_given_up_after_two_refusals() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["execution"] != "eager":
            why = "a custom step decides it"
            refuse("infeasible", f"rank 0: execution {params['execution']} has no effect: {why}")
        return 0.3 * params["a"]

    arena = MadeArena(space(execution=("eager", "script", "fold", "malleable", "other"), a=(0, 1)), rule)
    found = found_in(arena)
    assert found.best == (0, 1)
    assert sum(setting[0] != 0 for setting in arena.entered) == 2
