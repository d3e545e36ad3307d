"""Runs a plan on C++ threads, without Python's lock.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import weakref
from typing import AbstractSet, Any, Dict, List, Optional, Sequence, Tuple

import torch

from corewise.dataflow.native.build import CannotBuild, native_module
from corewise.dataflow.native.interface import BoxedCall, NativeLanes, NativeSchedule, NativeStep
from corewise.dataflow.program import Program, Ref
from corewise.dataflow.schedule import CALLER, Plan, Task
from corewise.dataflow.teams import Teams, also_in_team
from corewise.dataflow.timeline import Span
from corewise.dataflow.training import may_repeat, reversed_plan, training_obstacle

HANDOVER_S = 6e-6  # what it costs to have another thread go on; for the planner


class NotNative(Exception):
    """Why a program cannot be run by C++ threads."""


def missing() -> str:
    """Why there is no C++ executor here, empty when there is one; the first time this may build it."""
    try:
        native_module()
    except CannotBuild as problem:
        return str(problem)
    return ""


class NativeExecutor:
    """A plan bound to boxed operators and the C++ threads of its lanes.

    In grad mode the backward pass runs on the lanes as well, by the plan backwards or by one of its own,
    unless torch must differentiate the program as a whole: `training_obstacle` tells why.
    """

    name = "native"
    handover_s = HANDOVER_S

    def __init__(
        self,
        program: Program,
        tasks: Sequence[Task],
        plan: Plan,
        teams: Teams,
        backward_plan: Optional[Plan] = None,
    ) -> None:
        self.plan, self.teams = plan, teams
        self.training_obstacle = training_obstacle(program, tasks)
        back, shared = None, shared_tasks(program, tasks)
        if not self.training_obstacle:
            back = _bound(backward_plan or reversed_plan(plan), teams, _followers(tasks), shared)
        self._native = native_module()
        self.bound = self._native.executor(
            native_graph(program),
            native_lanes(teams),
            [list(task.calls) for task in tasks],
            *_bound(plan, teams, [task.needs for task in tasks], shared),
            back,
        )
        teams.crowd()

    def run(self, values: List[Any]) -> None:
        """Computes the program's values in place; on return the outputs are among them."""
        self._native.run(self.bound, values)

    @property
    def spans(self) -> List[Span]:
        """When each task of the last call ran."""
        return [Span(*span) for span in self._native.timeline(self.bound, False)]

    @property
    def backward_spans(self) -> List[Span]:
        """When each task of the last backward pass ran."""
        return [Span(*span) for span in self._native.timeline(self.bound, True)]


def _followers(tasks: Sequence[Task]) -> List[List[int]]:
    """For each task those that need it: backwards they come before it."""
    found: List[List[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for other in task.needs:
            found[other].append(number)
    return found


def shared_tasks(program: Program, tasks: Sequence[Task]) -> AbstractSet[int]:
    """Tasks that any idle core may take over: those of slices, which are many, small and alike."""
    if not program.slices:
        return frozenset()
    return {
        number
        for number, task in enumerate(tasks)
        if all(program.slices[call] is not None for call in task.calls)
    }


def _bound(
    plan: Plan,
    teams: Teams,
    needs: Optional[Sequence[Sequence[int]]] = None,
    shared: AbstractSet[int] = frozenset(),
) -> NativeSchedule:
    """CPUs of each thread, and the steps."""
    threads: List[int] = []  # of each lane
    cpus: List[List[int]] = [[]]
    used = {step.lane for step in plan.steps}
    for number, lane in enumerate(plan.lanes):
        if number == CALLER or lane.by_caller or number not in used:
            threads.append(CALLER)
        else:
            threads.append(len(cpus))
            cpus.append(list(teams.cpus[lane.first : lane.first + lane.width]))
    steps = []
    for step in plan.steps:
        width = plan.lanes[step.lane].width if step.lane != CALLER and threads[step.lane] == CALLER else 0
        after = sorted({*step.after, *(needs[step.task] if needs else ())})
        may_move = step.task in shared and plan.lanes[step.lane].width == 1
        steps.append((step.task, threads[step.lane], step.lane, width, after, may_move))
    _check_order(steps)
    return cpus, steps


def _check_order(steps: Sequence[NativeStep]) -> None:
    """Raises when threads would wait for each other for ever."""
    by_thread: Dict[int, List[Tuple[int, List[int]]]] = {}
    for task, thread, _, _, after, _ in steps:
        by_thread.setdefault(thread, []).append((task, after))
    ended: set[int] = set()
    places = dict.fromkeys(by_thread, 0)
    moved = True
    while moved:
        moved = False
        for thread, mine in by_thread.items():
            while places[thread] < len(mine) and ended.issuperset(mine[places[thread]][1]):
                ended.add(mine[places[thread]][0])
                places[thread] += 1
                moved = True
    if len(ended) != len(steps):
        stuck = [mine[places[thread]][0] for thread, mine in by_thread.items() if places[thread] < len(mine)]
        raise ValueError(f"this plan never ends: tasks {stuck} wait for each other")


_graphs: Dict[int, object] = {}  # by the program's identity
_lanes: weakref.WeakKeyDictionary[Teams, NativeLanes] = weakref.WeakKeyDictionary()


def native_lanes(teams: Teams) -> NativeLanes:
    """The C++ threads beside these teams; they end with them."""
    found = _lanes.get(teams)
    if found is None:
        native = native_module()
        found = _lanes[teams] = native.Lanes()
        teams.also_close(found)
        also_in_team(native.is_inside_a_run)
    return found


def native_graph(program: Program) -> object:
    """The program's calls, boxed; raises NotNative with the reason where one cannot be."""
    found = _graphs.get(id(program))
    if found is None:
        found = _graphs[id(program)] = _make_graph(program)
        weakref.finalize(program, _graphs.pop, id(program), None)
    return found


def _make_graph(program: Program) -> object:
    native = native_module()
    calls: List[BoxedCall] = []
    for call in program.calls:
        if not isinstance(call.target, torch._ops.OpOverload):
            raise NotNative(f"{call.name} calls Python ({getattr(call.target, '__name__', call.target)})")
        overload = call.target._overloadname
        calls.append(
            (
                call.target._schema.name,
                "" if overload == "default" else overload,
                call.args,
                dict(call.kwargs),
                call.results,
                call.spreads,
            )
        )
    outputs = list(dict.fromkeys(out.value for out in program.outputs if isinstance(out, Ref)))
    brought = [*program.inputs, *program.state, *program.constants, *program.packed]
    try:
        return native.graph(program.num_values, calls, brought, outputs, may_repeat(program), Ref)
    except Exception as problem:
        raise NotNative(f"an operator cannot be boxed: {str(problem).splitlines()[0]}") from problem
