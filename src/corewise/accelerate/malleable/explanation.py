"""Describe a plan as text.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

from corewise.accelerate.capture.program import Program
from corewise.accelerate.malleable.plan.cost_cache import PLAIN
from corewise.accelerate.malleable.plan.schedule import CALLER, LanePlan, OperatorTask
from corewise.accelerate.malleable.plan.task_merging import CallCosts, sum_task_costs
from corewise.accelerate.malleable.plan.time_bounds import compute_lower_bound_s

_MAX_NAMES = 3
_MAX_ROWS = 60


def describe_task(program: Program, task: OperatorTask, costs: Optional[CallCosts] = None) -> str:
    """Name the costliest calls of a task in order, or the slice of the batch that it is."""
    slice_numbers = {program.slices[call] for call in task.calls} if program.num_slices else {None}
    [slice_number, *other_slices] = slice_numbers
    if slice_number is not None and not other_slices:
        operators = _format_count(len(task.calls), "operator")
        return f"slice {slice_number + 1} of {program.num_slices}, {operators}"
    calls = list(task.calls)
    if costs is not None and len(calls) > _MAX_NAMES:
        costliest = sorted(calls, key=lambda call: -min(costs[call].values()))[:_MAX_NAMES]
        calls = sorted(costliest)
    names = ", ".join(program.calls[call].name for call in calls[:_MAX_NAMES])
    more = len(task.calls) - min(len(calls), _MAX_NAMES)
    return f"{names} and {more} more" if more else names


def build_plan_rows(
    program: Program, tasks: Sequence[OperatorTask], plan: LanePlan, costs: CallCosts, cpus: Sequence[int]
) -> List[Tuple[str, ...]]:
    """Build one row per step: task, width, cores, expected milliseconds, milliseconds at each width."""
    by_task = sum_task_costs(tasks, costs)
    rows: List[Tuple[str, ...]] = []
    for step in plan.steps:
        lane = plan.lanes[step.lane]
        lane_cpus = cpus[lane.first : lane.first + lane.width]
        # These CPUs have left the allocation.
        if len(lane_cpus) < lane.width:
            place = ""
        else:
            place = f"{lane_cpus[0]}-{lane_cpus[-1]}" if len(lane_cpus) > 1 else str(lane_cpus[0])
        cost = by_task[step.task]
        others = "  ".join(f"{width}: {1e3 * s:.3g}" for width, s in sorted(cost.items()))
        rows.append(
            (
                describe_task(program, tasks[step.task], costs),
                str(lane.width),
                place,
                f"{1e3 * cost[lane.width]:.3g}",
                others,
            )
        )
    return rows


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Format rows as columns of equal width."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in [head, *rows]]


def format_candidates(
    times_s: Mapping[str, float], expected_s: Mapping[str, float], chosen: str, losses: Mapping[str, str]
) -> List[str]:
    """List the candidates from fast to slow, with their expected times and why they do not run."""
    rows = []
    for name in sorted(times_s, key=lambda one: times_s[one]):
        expected = f"{1e3 * expected_s[name]:.3g}" if name in expected_s else ""
        rows.append((name, f"{1e3 * times_s[name]:.3g}", expected, "runs" if name == chosen else losses.get(name, "")))
    return format_table(("candidate", "ms", "expected", ""), rows)


def explain_plain(times_s: Mapping[str, float], losses: Mapping[str, str]) -> str:
    """Explain why the module itself runs, most of all where a candidate has the lower median."""
    faster = [name for name in losses if times_s[name] < times_s[PLAIN]]
    if not faster:
        return "The module itself runs: no candidate was faster."
    best = min(faster, key=lambda name: times_s[name])
    return f"The module itself runs: {best} was {losses[best]}."


def _format_count(num: int, what: str) -> str:
    return f"{num} {what}{'s' * (num != 1)}"


def _format_allocation(num_planned: int, num_now: int) -> str:
    now = f"this process may use {num_now} now"
    if num_now == 1:
        return f"planned for {num_planned} cores; {now}, so the module itself runs"
    return f"planned for {num_planned} cores; {now}; the next call adapts"


def describe_plan(
    program: Program,
    tasks: Sequence[OperatorTask],
    plan: Optional[LanePlan],
    costs: CallCosts,
    cpus: Sequence[int],
    times_s: Mapping[str, float],
    expected_s: Mapping[str, float],
    chosen: str,
    bound_s: float,
    is_borrowed: bool = False,
    losses: Optional[Mapping[str, str]] = None,
) -> str:
    """Describe the plan for one input signature.

    `is_borrowed`: plan and costs are of another size. `losses`: why timed candidates do not run.
    """
    losses = {name: reason for name, reason in (losses or {}).items() if name in times_s}
    num_cores = plan.lanes[CALLER].width if plan is not None else max(map(max, costs), default=len(cpus))
    bound_s = bound_s or compute_lower_bound_s(tasks, sum_task_costs(tasks, costs), num_cores)
    bound = f"no schedule can take less than {1e3 * bound_s:.3g} ms"
    lines = [
        f"{_format_count(len(program.calls), 'operator')} in {_format_count(len(tasks), 'task')} "
        f"on {num_cores} cores; "
        f"{'the plan was adopted from inputs of another size' if is_borrowed else bound}"
    ]
    if program.num_joined_lstms:
        lines.append(f"{program.num_joined_lstms} small recurrent layers run joined into wider ones")
    if program.num_own_lstms:
        calls = _format_count(program.num_own_lstms, "call")
        lines.append(f"{calls} of recurrent layers run row by row where that is faster")
    if program.packs:
        layers = _format_count(len(program.packs), "layer")
        lines.append(f"{layers} with prepacked weights; every call checks whether the weights have changed")
    if program.num_winograd:
        convolutions = _format_count(program.num_winograd, "convolution")
        lines.append(f"{convolutions} of these with our Winograd kernel")
    if program.num_slices:
        lines.append(f"the batch runs in {program.num_slices} slices, from the inputs until they are joined")
    if num_cores != len(cpus):
        lines.append(_format_allocation(num_cores, len(cpus)))
    if times_s:
        lines += format_candidates(times_s, expected_s, chosen, losses)
        reached = times_s[chosen]
        if reached > 0 and not is_borrowed:
            lines.append(f"{chosen} reaches {100 * min(1.0, bound_s / reached):.0f} % of this bound")
    elif is_borrowed:
        lines.append("the plan was not timed; real calls decide whether it stays, unless run='planned'")
    elif plan is not None:
        lines.append(f"the plan should take {1e3 * plan.expected_s:.3g} ms; it was not timed")
    elif expected_s:
        lines.append("no plan was fast enough on real calls")
    else:
        lines.append("no plan differs from plain execution: every task is fastest alone, on all cores")
    if plan is None:
        lines.append(explain_plain(times_s, losses))
        return "\n".join(lines)
    rows = build_plan_rows(program, tasks, plan, costs, cpus)
    num_columns = 3 if is_borrowed else 5
    head = ("task", "cores", "on", "ms", "ms at each width")[:num_columns]
    lines += ["", *format_table(head, [row[:num_columns] for row in rows[:_MAX_ROWS]])]
    if len(rows) > _MAX_ROWS:
        lines.append(f"and {len(rows) - _MAX_ROWS} more")
    return "\n".join(lines)
