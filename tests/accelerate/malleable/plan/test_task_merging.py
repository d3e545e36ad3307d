"""Calls become tasks: small ones join neighbours, branches and changes of width stay."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.accelerate.capture.call_order import find_required_order
from corewise.accelerate.capture.program import Call, Program, Ref
from corewise.accelerate.malleable.plan.task_merging import build_call_graph, find_chains, merge_calls, sum_task_costs

SMALL, BIG = {1: 1e-6, 2: 1e-6}, {1: 1e-2, 2: 5e-3}
NARROW = {1: 1e-2, 2: 1e-2}


def program_of(reads: list[list[int]], order: tuple[tuple[int, int], ...] = ()) -> Program:
    """A call for each list of the calls it reads; value 0 is the input, call n gives value n + 1."""
    calls = tuple(
        Call(f"op{n}", max, tuple(Ref(other + 1) for other in needed) or (Ref(0),), {}, (n + 1,))
        for n, needed in enumerate(reads)
    )
    return Program(calls, len(reads) + 1, (0,), {}, {}, (Ref(len(reads)),), order)


def test_branches_stay_and_what_is_small_joins_them() -> None:
    diamond = program_of([[], [0], [0], [1], [2], [3, 4]])
    tasks = merge_calls(diamond, [BIG, BIG, BIG, SMALL, SMALL, BIG], 1e-4)
    assert [task.calls for task in tasks] == [(0,), (1, 3), (2, 4), (5,)]
    assert [task.needs for task in tasks] == [(), (0,), (0,), (1, 2)]


def test_a_narrow_and_a_wide_neighbour_stay_apart_and_equals_join() -> None:
    chain = program_of([[], [0], [1]])
    assert [task.calls for task in merge_calls(chain, [BIG, BIG, NARROW], 1e-4)] == [(0, 1), (2,)]


def test_chains_have_no_parallel_branches() -> None:
    diamond = program_of([[], [0], [1], [1], [2, 3], [4]])
    assert [task.calls for task in find_chains(diamond)] == [(0, 1), (2,), (3,), (4, 5)]


def test_costs_of_a_task_are_those_of_its_calls() -> None:
    chain = program_of([[], [0]])
    assert sum_task_costs(find_chains(chain), [BIG, NARROW]) == ({1: 2e-2, 2: 1.5e-2},)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Program, list[dict[int, float]]]:
    num = draw(st.integers(1, 25))
    reads = [sorted(draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else [] for n in range(num)]
    pairs = draw(st.sets(st.tuples(st.integers(0, num - 1), st.integers(0, num - 1)), max_size=4))
    order = tuple(sorted(pair for pair in pairs if pair[0] < pair[1]))
    costs = [draw(st.sampled_from([SMALL, BIG, NARROW])) for _ in range(num)]
    slices = tuple(draw(st.sampled_from([None, 0, 1])) for _ in range(num)) if draw(st.booleans()) else ()
    return replace(program_of(reads, order), slices=slices), costs


def test_a_small_call_between_two_costly_ones_of_a_slice_is_not_lost() -> None:
    # Call 0 is only needed by the second costly call, but reaches it through a call that follows the first one.
    program = replace(program_of([[], [], [0, 1], [2], [0], [1]]), slices=(0, 0, 0, 0, None, None))
    tasks = merge_calls(program, [SMALL, BIG, SMALL, BIG, BIG, BIG], 1e-9)
    assert sorted(call for task in tasks for call in task.calls) == [0, 1, 2, 3, 4, 5]


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_merging_keeps_every_call_once_and_every_order(made: tuple[Program, list[dict[int, float]]]) -> None:
    program, costs = made
    for tasks in (merge_calls(program, costs, 1e-4), find_chains(program)):
        task_of = {call: number for number, task in enumerate(tasks) for call in task.calls}
        assert sorted(task_of) == list(range(len(program.calls)))
        for call, needed in enumerate(build_call_graph(program)):
            for earlier in needed:
                assert task_of[earlier] == task_of[call] or task_of[earlier] in tasks[task_of[call]].needs
        for number, task in enumerate(tasks):
            assert list(task.calls) == sorted(task.calls)
            assert all(other < number for other in task.needs)


def memories(*sets: Any) -> list[frozenset[int]]:
    return [frozenset(one) for one in sets]


def test_reads_and_writes_of_one_memory_keep_their_order() -> None:
    touched = memories({1}, {1}, {1}, {1}, {2})
    written = memories((), (), {1}, (), ())
    assert find_required_order(touched, written, [False] * 5) == ((0, 2), (1, 2), (2, 3))


def test_memory_that_nobody_writes_needs_no_order() -> None:
    assert find_required_order(memories({1}, {1}), memories((), ()), [False] * 2) == ()


def test_random_calls_keep_their_order() -> None:
    assert find_required_order(memories((), (), ()), memories((), (), ()), [True, False, True]) == ((0, 2),)
