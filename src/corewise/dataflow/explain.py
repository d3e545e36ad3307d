"""A decision in words.

Measured side: standard library only, Python 3.9. Pure.
"""

from __future__ import annotations

from typing import List, Mapping, Optional, Sequence, Tuple

from corewise.dataflow.bounds import lower_bound_s
from corewise.dataflow.program import Program
from corewise.dataflow.schedule import CALLER, Plan, Task
from corewise.dataflow.tasks import CallCosts, task_costs

_MOST_NAMES = 3
_MOST_ROWS = 60


def task_name(program: Program, task: Task, costs: Optional[CallCosts] = None) -> str:
    """The costliest calls of a task, in order; of a slice of the batch which one it is."""
    parts = {program.slices[call] for call in task.calls} if program.num_slices else {None}
    [part, *others] = parts
    if part is not None and not others:
        return f"slice {part + 1} of {program.num_slices}, {_counted(len(task.calls), 'operator')}"
    calls = list(task.calls)
    if costs is not None and len(calls) > _MOST_NAMES:
        dear = sorted(calls, key=lambda call: -min(costs[call].values()))[:_MOST_NAMES]
        calls = sorted(dear)
    names = ", ".join(program.calls[call].name for call in calls[:_MOST_NAMES])
    more = len(task.calls) - min(len(calls), _MOST_NAMES)
    return f"{names} and {more} more" if more else names


def plan_rows(
    program: Program, tasks: Sequence[Task], plan: Plan, costs: CallCosts, cpus: Sequence[int]
) -> List[Tuple[str, ...]]:
    """For each step: what, cores, expected milliseconds, and its times at all widths."""
    by_task = task_costs(tasks, costs)
    rows: List[Tuple[str, ...]] = []
    for step in plan.steps:
        lane = plan.lanes[step.lane]
        taken = cpus[lane.first : lane.first + lane.width]
        if len(taken) < lane.width:  # these CPUs were taken away
            where = ""
        else:
            where = f"{taken[0]}-{taken[-1]}" if len(taken) > 1 else str(taken[0])
        cost = by_task[step.task]
        others = "  ".join(f"{width}: {1e3 * s:.3g}" for width, s in sorted(cost.items()))
        rows.append(
            (
                task_name(program, tasks[step.task], costs),
                str(lane.width),
                where,
                f"{1e3 * cost[lane.width]:.3g}",
                others,
            )
        )
    return rows


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Columns of equal width."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in [head, *rows]]


def candidate_lines(times_s: Mapping[str, float], expected_s: Mapping[str, float], chosen: str) -> List[str]:
    """The candidates from fast to slow, with what was expected of them."""
    rows = []
    for name in sorted(times_s, key=lambda one: times_s[one]):
        expected = f"{1e3 * expected_s[name]:.3g}" if name in expected_s else ""
        rows.append((name, f"{1e3 * times_s[name]:.3g}", expected, "runs" if name == chosen else ""))
    return table(("candidate", "ms", "expected", ""), rows)


def _counted(num: int, what: str) -> str:
    return f"{num} {what}{'s' * (num != 1)}"


def _allocation_line(num_planned: int, num_now: int) -> str:
    now = f"this process may use {num_now} now"
    if num_now == 1:
        return f"planned for {num_planned} cores; {now}, and the module itself runs"
    return f"planned for {num_planned} cores; {now}, which the next call looks at"


def described(
    program: Program,
    tasks: Sequence[Task],
    plan: Optional[Plan],
    costs: CallCosts,
    cpus: Sequence[int],
    times_s: Mapping[str, float],
    expected_s: Mapping[str, float],
    chosen: str,
    bound_s: float,
    is_borrowed: bool = False,
) -> str:
    """The whole explanation of one kind of inputs; borrowed are plan and costs of another size."""
    num_cores = plan.lanes[CALLER].width if plan is not None else max(map(max, costs), default=len(cpus))
    bound_s = bound_s or lower_bound_s(tasks, task_costs(tasks, costs), num_cores)
    bound = f"no schedule of them ends before {1e3 * bound_s:.3g} ms"
    lines = [
        f"{_counted(len(program.calls), 'operator')} in {_counted(len(tasks), 'task')} on {num_cores} cores; "
        f"{'the plan of inputs of another size was taken over' if is_borrowed else bound}"
    ]
    if program.num_joined:
        lines.append(f"{program.num_joined} small recurrent layers run as parts of wider ones")
    if program.num_own:
        calls = _counted(program.num_own, "call")
        lines.append(f"{calls} of recurrent layers by rows where that pays: no row waits for another")
    if program.packs:
        layers = _counted(len(program.packs), "layer")
        lines.append(f"{layers} with weights packed beforehand; every call looks whether they have changed")
    if program.num_winograd:
        convolutions = _counted(program.num_winograd, "convolution")
        lines.append(f"{convolutions} of these on our kernel: fewer products, by Winograd's way")
    if program.num_slices:
        lines.append(f"the batch runs in {program.num_slices} slices, from the inputs to where they meet")
    if num_cores != len(cpus):
        lines.append(_allocation_line(num_cores, len(cpus)))
    if times_s:
        lines += candidate_lines(times_s, expected_s, chosen)
        reached = times_s[chosen]
        if reached > 0 and not is_borrowed:
            lines.append(f"{chosen} reaches {100 * min(1.0, bound_s / reached):.0f} % of the bound")
    elif is_borrowed:
        lines.append(
            "it was not timed beside others; unless told to run plans, real calls settle whether it stays"
        )
    elif plan is not None:
        lines.append(f"the plan should take {1e3 * plan.expected_s:.3g} ms; it was not timed beside others")
    elif expected_s:
        lines.append("tried on real calls, no plan was faster by enough")
    else:
        lines.append(
            "no plan differs from plain execution: every task is best at full width, one after the other"
        )
    if plan is None:
        lines.append("The module itself runs: nothing tried was faster by enough.")
        return "\n".join(lines)
    rows = plan_rows(program, tasks, plan, costs, cpus)
    num_columns = 3 if is_borrowed else 5
    head = ("task", "cores", "on", "ms", "ms at each width")[:num_columns]
    lines += ["", *table(head, [row[:num_columns] for row in rows[:_MOST_ROWS]])]
    if len(rows) > _MOST_ROWS:
        lines.append(f"and {len(rows) - _MOST_ROWS} more")
    return "\n".join(lines)
