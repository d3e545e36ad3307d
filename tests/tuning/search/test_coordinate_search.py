"""The search in simulated arenas, where the best setting is known."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.tuning.simulated_arena import RecordingWatcher, Rule, SimulatedArena, build_space, refuse

from corewise.measured.trial import NO_EFFECT, NOT_NOW
from corewise.tuning.search.coordinate_search import RACE_SHARE, Search
from corewise.tuning.search.judgements import SearchState
from corewise.tuning.search.setting_space import Knob, Setting, Space

LETTERS = build_space(a=(0, 1, 2), b=(0, 1), c=(0, 1))


def run_search(
    arena: SimulatedArena, *, deadline: float = 1e6, start: Setting | None = None, **more: Any
) -> SearchState:
    search = Search(
        arena.space,
        arena,
        more.pop("watcher", RecordingWatcher()),
        starts=more.pop("starts", [start or arena.space.default]),
        bounded_latency=more.pop("bounded_latency", False),
        **more,
    )
    search.run_default(100)
    return search.run(deadline)


def sum_gains(**gains: Mapping[Any, float]) -> Rule:
    return lambda params: sum(gain[params[name]] for name, gain in gains.items())


GAINS = sum_gains(a={0: 0.0, 1: -0.3, 2: 0.4}, b={0: 0.0, 1: 0.2}, c={0: 0.0, 1: -0.05})


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_independent_knobs_is_found_through_noise(seed: int) -> None:
    state = run_search(SimulatedArena(LETTERS, GAINS, noise=0.02, seed=seed))
    assert state.best == (2, 1, 0)
    assert state.finished
    assert state.score == pytest.approx(0.6, abs=0.1)


@pytest.mark.parametrize(("noise", "message"), [(0.01, ""), (0.1, "the machine was noisy: consecutive samplings")])
def test_a_search_with_noisy_samplings_says_so(noise: float, message: str) -> None:
    arena = SimulatedArena(LETTERS, sum_gains(a={0: 0, 1: 0, 2: 0}, b={0: 0, 1: 0}, c={0: 0, 1: 0}), noise=noise)
    search = Search(LETTERS, arena, RecordingWatcher(), starts=[], bounded_latency=False)
    search.run_default(100)
    search.run(1e6)
    assert search.describe_noise()[: len(message) or None] == message


def test_at_most_two_entrants_are_alive_and_none_at_the_end() -> None:
    arena = SimulatedArena(LETTERS, GAINS)
    run_search(arena)
    assert (arena.max_alive, arena.num_alive) == (2, 0)


def test_no_setting_is_entered_twice() -> None:
    arena = SimulatedArena(LETTERS, GAINS, noise=0.01)
    run_search(arena)
    assert len(arena.entered) == len(set(arena.entered))


def test_a_knob_that_only_helps_with_another_is_found_by_the_second_pass() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return (0.3 if params["b"] else 0.0) + (0.3 if params["a"] == 1 and params["b"] else 0.0)

    assert run_search(SimulatedArena(LETTERS, rule)).best == (1, 1, 0)


def test_two_knobs_that_only_help_together_are_found() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return 0.3 if params["a"] == 1 and params["b"] else -0.1 * bool(params["a"]) - 0.1 * params["b"]

    assert run_search(SimulatedArena(LETTERS, rule, noise=0.005)).best == (1, 1, 0)


def test_knobs_without_effect_keep_their_default() -> None:
    state = run_search(SimulatedArena(LETTERS, lambda params: 0.0, noise=0.005), start=(2, 1, 1))
    assert state.best == LETTERS.default
    assert (1, 0, 0) in state.find_tied()


def test_a_start_with_useless_knobs_is_made_simpler() -> None:
    rule = sum_gains(a={0: 0.0, 1: 0.0, 2: 0.4}, b={0: 0.0, 1: 0.0}, c={0: 0.0, 1: 0.0})
    assert run_search(SimulatedArena(LETTERS, rule, noise=0.002), start=(2, 1, 1)).best == (2, 0, 0)


def test_a_rejected_setting_never_wins_and_keeps_its_reason() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["a"] == 2:
            return refuse("check", "wrong numbers: error 1 against float64; 0.1 is allowed")
        return GAINS(params)

    state = run_search(SimulatedArena(LETTERS, rule))
    assert state.best == (0, 1, 0)
    [rejected] = {each.reason for each in state.judgements.values() if each.outcome == "rejected"}
    assert rejected.startswith("wrong numbers")


def test_a_precision_that_the_best_execution_does_not_support_is_tried_without_it() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["precision"] == "int8" and params["execution"] != "eager":
            refuse("infeasible", "int8 brings its own")
        return {"float32": 0.0, "int8": 0.9}[params["precision"]] + 0.3 * (params["execution"] == "frozen")

    precision, execution = build_space(precision=("float32", "int8"), execution=("eager", "frozen")).knobs
    precision = replace(precision, needs={1: {"execution": "eager"}})
    arena = SimulatedArena(Space({}, (precision, execution)), rule)
    assert run_search(arena, start=(0, 1)).best == (1, 0)
    # It is tried early, not as one of many pairs at the end.
    assert (1, 0) in arena.entered[:4]


def test_an_execution_that_needs_one_process_is_tried_with_one() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["execution"] == "malleable" and (params["processes"] > 1 or params["bind"] == "core"):
            refuse("infeasible", "one process")
        gains = {"eager": 0.2 * (params["processes"] - 1) + 0.1 * (params["bind"] == "core"), "malleable": 2.0}
        return gains[params["execution"]]

    knobs = build_space(processes=(1, 2, 4), bind=("none", "rank", "core"), execution=("eager", "malleable")).knobs
    execution = replace(knobs[2], needs={1: {"processes": 1, "bind": "rank"}})
    arena = SimulatedArena(Space({}, (*knobs[:2], execution)), rule)
    assert run_search(arena).best in ((0, 0, 1), (0, 1, 1))
    assert (0, 1, 1) in arena.entered


def test_a_choice_that_failed_is_not_tried_again_with_others() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return refuse("crash", "it died") if params["a"] == 1 else GAINS(params)

    arena = SimulatedArena(LETTERS, rule)
    run_search(arena)
    assert sum(setting[0] == 1 for setting in arena.entered) == 1


def test_a_setting_with_worse_latency_cannot_win_if_latency_is_bounded() -> None:
    arena = SimulatedArena(LETTERS, GAINS, latency=lambda params: 2.0 if params["a"] == 2 else 1.0)
    assert run_search(arena, bounded_latency=True).best == (0, 1, 0)
    assert run_search(replace(arena, entered=[])).best == (2, 1, 0)


def test_the_deadline_ends_the_search_and_lists_untried_choices() -> None:
    state = run_search(SimulatedArena(LETTERS, GAINS), deadline=5.0)
    assert not state.finished
    assert state.untried
    assert "the budget was used up" in state.untried[0].reason


def test_a_search_resumes_from_earlier_judgements() -> None:
    watcher = RecordingWatcher()
    first = run_search(SimulatedArena(LETTERS, GAINS), deadline=9.0, watcher=watcher)
    assert not first.finished
    arena = SimulatedArena(LETTERS, GAINS)
    second = run_search(arena, earlier=watcher.judgements)
    assert second.best == (2, 1, 0)
    assert second.finished
    again = set(arena.entered) & {each.setting for each in watcher.judgements}
    # Others are raced against it, so it is started once more.
    assert again <= {first.best}


def shapes() -> Space:
    counts = (1, 2, 4, 8, 16)
    choices = tuple({"processes": p, "threads": 16 // p} for p in counts)
    return Space({}, (Knob("shape", choices, ladders=(tuple(range(len(counts))),)),))


@pytest.mark.parametrize("peak", [1, 2, 4, 8, 16])
def test_a_ladder_is_climbed_to_its_peak(peak: int) -> None:
    def rule(params: Mapping[str, Any]) -> float:
        return -0.15 * abs(math.log2(params["processes"] / peak))

    assert shapes().build_params(run_search(SimulatedArena(shapes(), rule, noise=0.01)).best)["processes"] == peak


def test_a_branching_ladder_is_left_if_its_first_step_loses() -> None:
    choices = tuple({"threads": num} for num in (16, 8, 4, 2, 1))
    fewer = Space({}, (Knob("shape", choices, ladders=((0,), (0, 1, 2, 3, 4))),))
    arena = SimulatedArena(fewer, lambda params: math.log(params["threads"] / 16))
    assert run_search(arena).best == (0,)
    assert arena.entered == [(0,), (1,)]


# It dies before the next race, or during it.
@pytest.mark.parametrize("num_samplings", [1, 2])
def test_a_dead_incumbent_is_restarted(num_samplings: int) -> None:
    class Dying(SimulatedArena):
        died = False

        def enter(self, setting: Setting, limit_s: float) -> Any:
            entrant = super().enter(setting, limit_s)
            if setting == (2, 1, 0) and not self.died:
                self.died, sample = True, entrant.sample

                def fail_later() -> Any:
                    return sample() if entrant.num_samplings < num_samplings else refuse("memory", "killed")

                entrant.sample = fail_later  # type: ignore[method-assign]
            return entrant

    arena = Dying(LETTERS, GAINS)
    assert run_search(arena).best == (2, 1, 0)
    assert arena.entered.count((2, 1, 0)) == 2


def test_an_incumbent_that_dies_twice_is_not_blamed_on_the_challenger() -> None:
    class Dying(SimulatedArena):
        def enter(self, setting: Setting, limit_s: float) -> Any:
            entrant = super().enter(setting, limit_s)
            sample = entrant.sample

            def fail_in_race() -> Any:
                is_racing = setting == (0,) and self.num_alive == 2
                return refuse("killed", "signal 9") if is_racing else sample()

            entrant.sample = fail_in_race  # type: ignore[method-assign]
            return entrant

    state = run_search(Dying(build_space(a=(0, 1)), lambda params: 0.5 * params["a"]))
    judged = state.judgements[(1,)]
    assert state.best == (0,)
    assert (judged.category, judged.outcome) == (NOT_NOW, "rejected")
    assert judged.reason == "the best setting so far failed twice during the race: signal 9"


def test_the_arena_prepares_for_the_next_and_likely_settings() -> None:
    arena = SimulatedArena(LETTERS, GAINS)
    run_search(arena)
    assert set(arena.entered) < set(arena.expected)


def test_knobs_of_the_start_are_unset_last() -> None:
    arena = SimulatedArena(LETTERS, GAINS)
    run_search(arena, start=(2, 0, 0))
    unset = [setting for setting in arena.entered[1:] if setting[0] == 0]
    assert unset[0] == (0, 1, 0)
    assert arena.entered.index((2, 1, 1)) < arena.entered.index((0, 1, 0))


# Either starting or sampling takes most of the time.
@pytest.mark.parametrize("sampling_s", [0.1, 3.0])
@pytest.mark.parametrize("deadline", [20.0, 45.0, 90.0, 300.0])
def test_tied_races_overrun_the_deadline_by_at_most_one(sampling_s: float, deadline: float) -> None:
    wide = build_space(**dict.fromkeys("abcdefgh", (0, 1, 2)))
    for seed in range(10):
        arena = SimulatedArena(wide, lambda params: 0.0, noise=0.03, seed=seed, sampling_s=sampling_s)
        state = run_search(arena, deadline=deadline, start=(1,) * 8)
        longest_s = max(deadline * RACE_SHARE, 1.0) + 3 * sampling_s
        assert arena.seconds < deadline + longest_s
        assert state.finished or state.untried


def test_a_start_that_exceeds_the_time_left_is_cut_off_and_tried_again_later() -> None:
    compiled = Knob("a", ({"a": 0}, {"a": 1}), costly=frozenset((1,)))
    slow = Space({}, (compiled, Knob("b", ({"b": 0}, {"b": 1}))))

    def start(params: Mapping[str, Any]) -> float:
        return 100.0 if params["a"] else 1.0

    watcher = RecordingWatcher()
    rule = sum_gains(a={0: 0.0, 1: 0.5}, b={0: 0.0, 1: 0.2})
    arena = SimulatedArena(slow, rule, start=start)
    first = run_search(arena, deadline=30.0, watcher=watcher)
    assert arena.seconds < 31.0
    assert [each.description for each in first.untried] == ["a 1"]
    assert not any(each.outcome == "rejected" for each in watcher.judgements)
    assert run_search(SimulatedArena(slow, rule, start=start), earlier=watcher.judgements).best == (1, 1)


@pytest.mark.parametrize("start_s", [0.0, 100.0], ids=["that is not known to be slow", "that is"])
def test_a_best_that_starts_too_slowly_for_the_time_left_is_not_restarted(start_s: float) -> None:
    watcher = RecordingWatcher()
    run_search(SimulatedArena(LETTERS, GAINS), deadline=9.0, watcher=watcher)
    earlier = [replace(each, start_s=start_s) for each in watcher.judgements]
    arena = SimulatedArena(LETTERS, GAINS, start=lambda params: 100.0)
    state = run_search(arena, deadline=20.0, earlier=earlier)
    assert arena.seconds == pytest.approx(0.0 if start_s else 20.0)
    assert state.untried
    assert state.best == next(each.setting for each in reversed(earlier) if each.outcome == "won")


def test_a_tied_start_is_kept_and_then_simplified() -> None:
    # Knob c gains nothing alone, but much together with a.
    def rule(params: Mapping[str, Any]) -> float:
        return 0.3 if params["a"] == 2 and params["c"] else -0.1 * (params["a"] == 2)

    arena = SimulatedArena(LETTERS, rule, noise=0.002)
    state = run_search(arena, start=(0, 1, 1))
    assert state.best == (2, 0, 1)
    # The first knob is varied from the good start.
    assert arena.entered[2] == (1, 1, 1)


def test_the_default_is_raced_again_if_a_start_was_only_preferred() -> None:
    arena = SimulatedArena(LETTERS, lambda params: 0.0, noise=0.005)
    state = run_search(arena, start=(0, 0, 1))
    assert state.best == LETTERS.default
    assert arena.entered.count(LETTERS.default) == 2
    assert state.judgements[LETTERS.default].outcome == "default"


def test_a_start_that_loses_is_tried_without_its_layout() -> None:
    images = build_space(memory_format=("contiguous", "channels_last"), c=(0, 1))

    def rule(params: Mapping[str, Any]) -> float:
        return (-0.4 if params["memory_format"] == "channels_last" else 0.0) + 0.1 * params["c"]

    arena = SimulatedArena(images, rule)
    assert run_search(arena, start=(1, 1)).best == (0, 1)
    assert arena.entered[:3] == [(0, 0), (1, 1), (0, 1)]


FINE = build_space(shape=("1x2", "2x1"), allocator=("default", "tcmalloc", "retain"))
BY_HAND = (0, 1)


@pytest.mark.parametrize(("gain", "best"), [(0.02, (0, 1)), (-0.02, (0, 1)), (0.08, (0, 2))])
def test_a_fine_knob_of_the_start_changes_only_for_a_minimum_lead(gain: float, best: Setting) -> None:
    rule = sum_gains(shape={"1x2": 0.0, "2x1": -0.3}, allocator={"default": 0.0, "tcmalloc": 0.0, "retain": gain})
    assert run_search(SimulatedArena(FINE, rule, noise=0.002), start=BY_HAND).best == best


def test_an_unlucky_start_keeps_its_fine_knobs() -> None:
    """Others may lead it; another start of the same setting then shows that it was the start."""

    def luck(setting: Setting, number: int) -> float:
        return -0.1 if setting == BY_HAND and number == 1 else 0.0

    rule = sum_gains(shape={"1x2": 0.0, "2x1": -0.3}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0})
    arena = SimulatedArena(FINE, rule, noise=0.002, luck=luck)
    watcher = RecordingWatcher()
    assert run_search(arena, start=BY_HAND, watcher=watcher).best == BY_HAND
    assert arena.entered.count(BY_HAND) == 2
    assert (arena.max_alive, arena.num_alive) == (2, 0)
    [retain] = [each for each in watcher.judgements if each.setting == (0, 2)]
    assert retain.outcome == "tied"


def test_a_coarse_knob_needs_no_second_start() -> None:
    def luck(setting: Setting, number: int) -> float:
        return -0.1 if setting == BY_HAND and number == 1 else 0.0

    rule = sum_gains(shape={"1x2": 0.0, "2x1": 0.02}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": -0.2})
    arena = SimulatedArena(FINE, rule, noise=0.002, luck=luck)
    assert run_search(arena, start=BY_HAND).best == (1, 1)
    assert arena.entered.count(BY_HAND) == 1


def test_a_best_that_does_not_restart_is_replaced() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["allocator"] == "tcmalloc" and arena.entered.count(BY_HAND) == 2:
            return refuse("error", "it ended with 1")
        return 0.1 if params["allocator"] == "retain" else 0.0

    arena = SimulatedArena(FINE, rule, noise=0.002)
    assert run_search(arena, start=BY_HAND).best[1] == 2
    assert arena.num_alive == 0


def test_a_fine_knob_stays_without_time_for_a_second_start() -> None:
    rule = sum_gains(shape={"1x2": 0.0, "2x1": -0.5}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0.1})
    long = SimulatedArena(FINE, rule, noise=0.002)
    assert run_search(long, start=BY_HAND).best == (0, 2)
    number = long.entered.index((0, 2))
    short = SimulatedArena(FINE, rule, noise=0.002)
    state = run_search(short, start=BY_HAND, deadline=number + 2.0)
    assert state.best == BY_HAND
    assert short.entered.count(BY_HAND) == 1
    assert short.num_alive == 0
    assert not state.finished
    assert (0, 2) not in state.judgements, "a resumed search tries it again"
    later = run_search(SimulatedArena(FINE, rule, noise=0.002), start=BY_HAND, earlier=tuple(state.judgements.values()))
    assert later.best == (0, 2)


def test_a_second_start_that_exceeds_the_time_left_decides_nothing() -> None:
    rule = sum_gains(shape={"1x2": 0.0, "2x1": -0.5}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0.1})

    # The second start of the hand setting takes four seconds.
    def start(params: Mapping[str, Any]) -> float:
        return 4.0 if params["allocator"] == "tcmalloc" and arena.entered.count(BY_HAND) == 1 else 1.0

    for deadline in (6.0, 6.5, 7.0, 7.5, 8.0):
        arena = SimulatedArena(FINE, rule, noise=0.002)
        arena.start = start
        state = run_search(arena, start=BY_HAND, deadline=deadline)
        assert arena.num_alive == 0
        if arena.entered.count(BY_HAND) == 2 and arena.seconds <= deadline + 0.5:
            assert state.best == BY_HAND
            assert "allocator retain" in {each.description for each in state.untried}


def test_the_score_of_an_unlucky_start_is_corrected_by_the_second() -> None:
    def luck(setting: Setting, number: int) -> float:
        return -0.1 if setting == BY_HAND and number == 1 else 0.0

    rule = sum_gains(shape={"1x2": 0.0, "2x1": -0.3}, allocator={"default": -0.2, "tcmalloc": 0.0, "retain": 0})
    state = run_search(SimulatedArena(FINE, rule, noise=0.002, luck=luck), start=BY_HAND)
    assert state.best == BY_HAND
    assert state.score == pytest.approx(0.2, abs=0.02)
    assert state.judgements[BY_HAND].latency_score == pytest.approx(-0.2, abs=0.02)
    assert state.judgements[0, 2].score == pytest.approx(0.2, abs=0.02)
    assert FINE.default not in state.find_tied()


SHAPES = Knob("shape", ({"processes": 1, "threads": 2}, {"processes": 2, "threads": 1}))
PINNED = build_space(bind=("none", "rank", "core"), wait_policy=("default", "active", "passive"))
PROCESSES = Space({}, (SHAPES, *PINNED.knobs))


@pytest.mark.parametrize(
    ("setting", "canonical"),
    [
        # Two threads wait for each other, so the wait policy matters.
        ((0, 2, 1), (0, 2, 1)),
        ((1, 2, 1), (1, 1, 0)),
        ((1, 1, 2), (1, 1, 0)),
        # A thread that is not pinned may move, so binding matters.
        ((1, 0, 2), (1, 0, 0)),
    ],
)
def test_equivalent_settings_of_one_thread_are_canonicalized(setting: Setting, canonical: Setting) -> None:
    assert PROCESSES.canonicalize(setting) == canonical
    assert PROCESSES.canonicalize(canonical) == canonical


def test_equivalent_settings_are_entered_once() -> None:
    arena = SimulatedArena(PROCESSES, lambda params: 0.5 * (params["threads"] == 1), noise=0.002)
    state = run_search(arena, start=(0, 1, 0))
    assert state.best == (1, 1, 0)
    assert {each for each in arena.entered if each[0] == 1} == {(1, 1, 0), (1, 0, 0)}


def test_knobs_without_effect_on_one_thread_are_unset() -> None:
    arena = SimulatedArena(PROCESSES, lambda params: 0.5 * (params["threads"] == 1), noise=0.002)
    assert run_search(arena, start=(0, 2, 1)).best == (1, 1, 0)


def test_a_knob_without_effect_is_given_up_after_two_refusals() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["execution"] != "eager":
            refuse(NO_EFFECT, f"rank 0: execution {params['execution']} has no effect: a custom step decides it")
        return 0.3 * params["a"]

    arena = SimulatedArena(build_space(execution=("eager", "script", "fold", "malleable", "other"), a=(0, 1)), rule)
    state = run_search(arena)
    assert state.best == (0, 1)
    assert sum(setting[0] != 0 for setting in arena.entered) == 2


def test_a_candidate_that_starts_too_slowly_for_its_share_is_abandoned_and_others_are_tried() -> None:
    def start(params: Mapping[str, Any]) -> float:
        return 100.0 if params["a"] == 1 else 1.0

    arena = SimulatedArena(LETTERS, GAINS, start=start)
    state = run_search(arena, deadline=40.0)
    assert arena.seconds < 41.0
    assert state.best == (2, 1, 0)
    [abandoned] = [each for each in state.untried if each.description == "a 1"]
    assert abandoned.reason.startswith("abandoned because it did not start within")
    assert not state.finished


def test_a_search_with_a_later_deadline_tries_what_was_left_out() -> None:
    arena = SimulatedArena(LETTERS, GAINS)
    search = Search(LETTERS, arena, RecordingWatcher(), starts=[], bounded_latency=False)
    search.run_default(100)
    assert search.run(3.0).untried
    state = search.run(1e6)
    assert (state.best, state.finished, state.untried) == ((2, 1, 0), True, ())


@pytest.mark.parametrize(("start_s", "num"), [(1.0, 2), (60.0, 1)])
def test_a_default_that_starts_slowly_is_sampled_once(start_s: float, num: int) -> None:
    arena = SimulatedArena(LETTERS, GAINS, start=lambda params: start_s)
    search = Search(LETTERS, arena, RecordingWatcher(), starts=[], bounded_latency=False)
    search.run_default(100.0)
    assert arena.seconds == pytest.approx(start_s + num * arena.sampling_s)


def test_a_search_continues_in_a_space_with_fewer_knobs() -> None:
    arena = SimulatedArena(LETTERS, GAINS)
    first = Search(LETTERS, arena, RecordingWatcher(), starts=[], bounded_latency=False)
    first.run_default(100)
    arena.space = build_space(a=(0, 1, 2), b=(0, 1))
    arena.rule = sum_gains(a={0: 0.0, 1: -0.3, 2: 0.4}, b={0: 0.0, 1: 0.2})
    second = Search(arena.space, arena, RecordingWatcher(), starts=[], bounded_latency=False)
    second.take_over(first)
    assert second.run(1e6).best == (2, 1)
    assert arena.entered.count((0, 0, 0)) == 1
    assert (0, 0) not in arena.entered
    assert arena.num_alive == 0
