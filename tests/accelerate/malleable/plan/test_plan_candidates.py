"""Schedules: each task once, after what it needs, alone on its cores, and no shorter than the bound."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from corewise.accelerate.malleable.adaptive_width import interpolate_costs
from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.plan.cost_feedback import update_costs
from corewise.accelerate.malleable.plan.lane_widths import list_slots, list_widths
from corewise.accelerate.malleable.plan.plan_candidates import build_plan, is_valid_plan, plan_fixed, plan_moldable
from corewise.accelerate.malleable.plan.schedule import CALLER, Lane, LanePlan, LaneStep, OperatorTask
from corewise.accelerate.malleable.plan.time_bounds import (
    compute_area_s,
    compute_critical_path_s,
    compute_lower_bound_s,
)

HANDOVER_S = 1e-5


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[OperatorTask], list[dict[int, float]], int]:
    num_cores = draw(st.integers(1, 12))
    num_tasks = draw(st.integers(1, 14))
    tasks, costs = [], []
    for number in range(num_tasks):
        needs = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        tasks.append(OperatorTask((number,), tuple(sorted(needs))))
        serial, share = draw(st.floats(0, 1e-2)), draw(st.floats(0, 1))
        costs.append({w: serial * (share + (1 - share) / w) for w in list_widths(num_cores)})
    return tasks, costs, num_cores


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_plan_is_valid_and_never_beats_the_bound(
    problem: tuple[list[OperatorTask], list[dict[int, float]], int],
) -> None:
    tasks, costs, num_cores = problem
    plan = plan_moldable(tasks, costs, num_cores, HANDOVER_S)
    assert is_valid_plan(plan, tasks, num_cores)
    assert plan.expected_s >= compute_lower_bound_s(tasks, costs, num_cores) * (1 - 1e-9)
    serial = sum(cost[num_cores] for cost in costs)
    assert plan.expected_s <= serial * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(problems(), st.randoms())
def test_any_widths_give_a_valid_plan(
    problem: tuple[list[OperatorTask], list[dict[int, float]], int], chance: random.Random
) -> None:
    tasks, costs, num_cores = problem
    widths = [chance.choice(list_widths(num_cores)) for _ in tasks]
    plan = build_plan(tasks, costs, widths, num_cores, HANDOVER_S)
    assert is_valid_plan(plan, tasks, num_cores)
    assert {step.task: plan.lanes[step.lane].width for step in plan.steps} == dict(enumerate(widths))


def test_eight_equal_branches_share_sixteen_cores_and_the_join_has_all() -> None:
    tasks = [
        OperatorTask((0,), ()),
        *(OperatorTask((n,), (0,)) for n in range(1, 9)),
        OperatorTask((9,), tuple(range(1, 9))),
    ]
    branch = {w: 0.04 / min(w, 3) for w in list_widths(16)}
    wide = {w: 0.02 / w for w in list_widths(16)}
    plan = plan_moldable(tasks, [wide, *[branch] * 8, wide], 16, HANDOVER_S)
    widths = {step.task: plan.lanes[step.lane].width for step in plan.steps}
    assert [widths[n] for n in range(10)] == [16, *[2] * 8, 16]
    assert plan.steps[-1].lane == CALLER


def test_the_caller_takes_a_branch_one_core_wide() -> None:
    tasks = [OperatorTask((n,), ()) for n in range(2)]
    plan = plan_moldable(tasks, [{1: 1.0, 2: 0.9}] * 2, 2, HANDOVER_S)
    assert [lane.by_caller for lane in plan.lanes].count(True) == 1


def test_a_fixed_setting_has_one_width() -> None:
    tasks = [OperatorTask((n,), ()) for n in range(4)]
    plan = plan_fixed(tasks, [{1: 1.0, 2: 0.6, 4: 0.4}] * 4, 4, 0.0, inter=2)
    assert {plan.lanes[step.lane].width for step in plan.steps} == {2}
    assert plan.expected_s == 1.2


def test_the_bound_is_the_critical_path_or_the_area() -> None:
    chain = [OperatorTask((0,), ()), OperatorTask((1,), (0,))]
    apart = [OperatorTask((0,), ()), OperatorTask((1,), ())]
    costs = [{1: 1.0, 2: 0.8}] * 2
    assert compute_critical_path_s(chain, costs) == 1.6
    assert compute_critical_path_s(apart, costs) == 0.8
    assert compute_area_s(costs, 2) == 1.0
    assert compute_lower_bound_s(chain, costs, 2) == 1.6
    assert compute_lower_bound_s(apart, costs, 2) == 1.0


def test_two_tasks_at_a_time_on_one_core_are_no_valid_plan() -> None:
    tasks = [OperatorTask((0,), ()), OperatorTask((1,), ())]
    lanes = (Lane(0, 2), Lane(0, 1), Lane(1, 1))
    together = LanePlan(lanes, (LaneStep(0, 1, ()), LaneStep(1, 2, ())), 1.0)
    assert is_valid_plan(together, tasks, 2)
    colliding = LanePlan(lanes, (LaneStep(0, 0, ()), LaneStep(1, 2, ())), 1.0)
    assert not is_valid_plan(colliding, tasks, 2)
    assert not is_valid_plan(LanePlan(lanes, (LaneStep(0, 1, ()),), 1.0), tasks, 2)
    assert not is_valid_plan(together, [OperatorTask((0,), ()), OperatorTask((1,), (0,))], 2)


def test_widths_are_shares_of_the_cores() -> None:
    assert list_widths(1) == (1,)
    assert list_widths(6) == (1, 2, 3, 4, 6)
    assert list_widths(16) == (1, 2, 4, 8, 16)
    assert list_slots(4, 6) == (0,)
    assert list_slots(2, 6) == (0, 2, 4)


def test_costs_at_unmeasured_widths_lie_between_the_measured_ones() -> None:
    [cost] = interpolate_costs([{1: 4.0, 2: 2.0, 4: 1.0}], (1, 3, 4, 8))
    assert cost[1] == 4.0
    assert 1.0 < cost[3] < 2.0
    assert cost[8] == cost[4] == 1.0


def test_times_of_concurrent_tasks_correct_their_costs() -> None:
    plan = LanePlan((Lane(0, 2), Lane(0, 1, True), Lane(1, 1)), (LaneStep(0, 1, ()), LaneStep(1, 2, ())), 1.0)
    seen = [[Span(0, 1, 0.0, 2.0), Span(1, 2, 0.0, 1.0)]] * 3
    costs = update_costs([{1: 1.0, 2: 0.6}, {1: 1.0, 2: 0.6}], plan, seen)
    assert costs == ({1: 2.0, 2: 0.6}, {1: 1.0, 2: 0.6})


def test_branches_that_do_not_fill_the_cores_are_spread_over_them() -> None:
    tasks = [OperatorTask((number,), ()) for number in range(8)]
    costs = [{1: 1.0, 2: 0.9, 16: 0.9}] * 8
    plan = build_plan(tasks, costs, [1] * 8, 16, 0.0)
    assert {plan.lanes[step.lane].first for step in plan.steps} == set(range(0, 16, 2))
    crowded = build_plan([*tasks, OperatorTask((8,), ())], [*costs, costs[0]], [1] * 9, 16, 0.0)
    assert len({crowded.lanes[step.lane].first for step in crowded.steps}) == 9
