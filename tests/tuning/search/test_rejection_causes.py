"""What a rejection teaches: one cause is learnt once, and a crash blames nothing without evidence."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.tuning.search.test_coordinate_search import run_search
from tests.tuning.simulated_arena import SimulatedArena, build_space, refuse

from corewise.measured.trial import NO_EFFECT, NOT_NOW
from corewise.tuning.search.rejection_causes import RejectionCauses, group_rejections, parse_refusal
from corewise.tuning.search.setting_space import Knob, Setting, Space

EXECUTIONS: tuple[Mapping[str, Any], ...] = (
    {"execution": "eager"},
    {"execution": "eager", "freezing": "full"},
    {"execution": "eager", "freezing": "fold"},
    {"execution": "malleable"},
    {"execution": "malleable", "freezing": "fold"},
    {"execution": "script", "freezing": "fold"},
    {"execution": "script"},
)
FROZEN = Space(
    {},
    (
        Knob("execution", EXECUTIONS),
        Knob("allocator", ({"allocator": "default"}, {"allocator": "retain"})),
        Knob("wait_policy", ({"wait_policy": "default"}, {"wait_policy": "active"})),
    ),
)


def refuse_tracing(params: Mapping[str, Any]) -> float:
    freezing = params.get("freezing", "none")
    if freezing != "none":
        refuse("infeasible", f"rank 0: freezing {freezing}: torch.fx cannot trace this module")
    if params["execution"] == "script":
        refuse("infeasible", "rank 1: execution script: torch.jit.script does not support this module")
    return 0.2 * (params["execution"] == "malleable") + 0.3 * (params["wait_policy"] == "active")


def test_each_value_that_is_refused_is_started_once() -> None:
    arena = SimulatedArena(FROZEN, refuse_tracing)
    state = run_search(arena, start=(2, 1, 0))
    started = [FROZEN.build_params(each) for each in arena.entered]
    for values in ({"freezing": "full"}, {"freezing": "fold"}, {"execution": "script"}):
        assert sum(values.items() <= each.items() for each in started) == 1
    assert FROZEN.build_params(state.best)["execution"] == "malleable"
    assert FROZEN.build_params(state.best)["wait_policy"] == "active"
    assert {each.description for each in state.causes} == {"freezing full", "freezing fold", "execution script"}


def test_a_short_search_tries_every_knob_before_the_second_choice_of_one() -> None:
    arena = SimulatedArena(FROZEN, refuse_tracing)
    state = run_search(arena, deadline=9.0)
    assert not state.finished
    assert FROZEN.build_params(state.best)["wait_policy"] == "active"


def test_a_start_is_tried_without_a_value_that_another_start_showed_to_be_refused() -> None:
    arena = SimulatedArena(FROZEN, refuse_tracing)
    run_search(arena, start=(1, 0, 0))
    both = SimulatedArena(FROZEN, refuse_tracing)
    run_search(both, starts=[(1, 0, 0), (1, 1, 1)])
    assert (0, 1, 1) in both.entered[:4]


def test_a_resumed_search_does_not_start_a_refused_value_again() -> None:
    first = run_search(SimulatedArena(FROZEN, refuse_tracing), deadline=4.0)
    arena = SimulatedArena(FROZEN, refuse_tracing)
    known = {each.description for each in first.causes}
    assert known
    run_search(arena, earlier=list(first.judgements.values()))
    started = {axis for each in arena.entered for axis in FROZEN.build_params(each).items()}
    assert not any(f"{name} {value}" in known for name, value in started)


@pytest.mark.parametrize(
    ("reason", "values"),
    [
        ("freezing full: torch.fx cannot trace it: why", {"freezing": "full"}),
        ("rank 3: dtype int8: no layer", {"dtype": "int8"}),
        ("execution eager, freezing full: nothing prepared", {"execution": "eager", "freezing": "full"}),
        ("dtype int8 has no effect: a custom step decides it", {"dtype": "int8"}),
        # It names a value that the setting does not have, or no value at all.
        ("freezing fold: no batch normalisation", {}),
        ("allocator: tcmalloc is not installed", {}),
        ("a global batch of 1 is too small for 2 processes", {}),
        ("RuntimeError: no such operator", {}),
    ],
)
def test_a_refusal_names_its_values(reason: str, values: Mapping[str, str]) -> None:
    params = {"execution": "eager", "freezing": "full", "dtype": "int8"}
    assert parse_refusal(reason, params)[0] == values


def test_values_that_are_refused_together_reject_only_settings_with_both() -> None:
    causes = RejectionCauses(FROZEN)
    causes.learn_rejection((1, 0, 0), "infeasible", "execution eager, freezing full: nothing was prepared")
    assert causes.avoid((1, 1, 1))
    assert not causes.avoid((2, 0, 0))


LETTERS = build_space(a=(0, 1, 2), b=(0, 1), c=(0, 1))


def list_causes(*crashes: Setting, ran: tuple[Setting, ...] = (), category: str = "crash") -> list[str]:
    causes = RejectionCauses(LETTERS)
    for each in ran:
        causes.learn_success(each)
    for each in crashes:
        causes.learn_rejection(each, category, "signal 11")
    return [each.description for each in causes.found]


def test_one_crash_rejects_only_its_setting() -> None:
    assert list_causes((1, 0, 0)) == []


def test_two_crashes_that_share_one_value_reject_it() -> None:
    assert list_causes((1, 1, 0), (1, 0, 1)) == ["a 1"]


def test_two_crashes_that_share_several_values_or_none_reject_nothing() -> None:
    assert list_causes((1, 1, 0), (1, 1, 1)) == []
    assert list_causes((1, 1, 0), (2, 0, 1)) == []


def test_a_value_that_has_run_is_not_blamed_for_crashes() -> None:
    assert list_causes((1, 1, 0), (1, 0, 1), ran=((1, 0, 0),)) == []
    assert list_causes((1, 1, 0), (1, 1, 1), ran=((1, 0, 0),)) == ["b 1"]


@pytest.mark.parametrize("category", ["timeout", NOT_NOW])
def test_lack_of_time_or_memory_blames_nothing(category: str) -> None:
    assert list_causes((1, 1, 0), (1, 0, 1), category=category) == []


def test_rejections_are_listed_once_for_each_cause() -> None:
    causes = RejectionCauses(FROZEN)
    causes.learn_rejection((1, 1, 0), "infeasible", "rank 0: freezing full: cannot trace it")
    assert causes.avoid((1, 0, 0))
    assert causes.avoid((1, 0, 0))
    causes.learn_rejection((0, 0, 1), "crash", "signal 11")
    rejections = [
        ("freezing full, retain", FROZEN.build_params((1, 1, 0)), "rank 0: freezing full: cannot trace it"),
        ("wait_policy active", FROZEN.build_params((0, 0, 1)), "signal 11"),
        ("retain", FROZEN.build_params((0, 1, 0)), "signal 11"),
    ]
    listed = [(each.description, each.reason, each.num_avoided) for each in group_rejections(rejections, causes.found)]
    assert listed == [("freezing full", "cannot trace it", 1), ("wait_policy active; retain", "signal 11", 0)]


def test_a_value_without_effect_is_not_started_again() -> None:
    def rule(params: Mapping[str, Any]) -> float:
        if params["allocator"] == "retain":
            refuse(NO_EFFECT, "allocator retain has no effect: the program brings an allocator")
        return 0.1 * (params["wait_policy"] == "active")

    arena = SimulatedArena(FROZEN, rule)
    run_search(arena)
    assert sum(each[1] == 1 for each in arena.entered) == 1
