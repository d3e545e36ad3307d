"""Run a plan on C++ threads, without Python's global interpreter lock.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import weakref
from typing import AbstractSet, Any, Dict, List, Optional, Sequence, Tuple

import torch

from corewise.accelerate.capture.program import Program, Ref
from corewise.accelerate.kernels.build import NativeBuildError, load_native_module
from corewise.accelerate.kernels.module_interface import BoxedCall, NativeLanes, NativeSchedule, NativeStep
from corewise.accelerate.malleable.execute.thread_teams import Teams, register_team_check
from corewise.accelerate.malleable.execute.timeline import Span
from corewise.accelerate.malleable.execute.training_order import (
    build_backward_plan,
    find_training_obstacle,
    is_repeatable,
)
from corewise.accelerate.malleable.plan.schedule import CALLER, LanePlan, OperatorTask

# Seconds to continue on another thread. Used by the planner.
HANDOVER_S = 6e-6


class NotNativeError(Exception):
    """Raised with the reason if C++ threads cannot run a program."""


def explain_missing_native() -> str:
    """Explain why there is no C++ executor; empty if there is one. The first call may build it."""
    try:
        load_native_module()
    except NativeBuildError as problem:
        return str(problem)
    return ""


class NativeExecutor:
    """A plan bound to boxed operators and the C++ threads of its lanes.

    In grad mode the backward pass runs on the lanes as well, by the reversed plan or a separate one, unless
    torch must differentiate the whole program: see `training_obstacle`.
    """

    name = "native"
    handover_s = HANDOVER_S

    def __init__(
        self,
        program: Program,
        tasks: Sequence[OperatorTask],
        plan: LanePlan,
        teams: Teams,
        backward_plan: Optional[LanePlan] = None,
    ) -> None:
        self.plan, self.teams = plan, teams
        self.training_obstacle = find_training_obstacle(program, tasks)
        back, shared = None, find_shared_tasks(program, tasks)
        if not self.training_obstacle:
            back = _bind_plan(backward_plan or build_backward_plan(plan), teams, _find_followers(tasks), shared)
        self._native = load_native_module()
        self.handle = self._native.executor(
            get_native_graph(program),
            get_native_lanes(teams),
            [list(task.calls) for task in tasks],
            *_bind_plan(plan, teams, [task.needs for task in tasks], shared),
            back,
        )
        teams.update_surplus_threads()

    def run(self, values: List[Any]) -> None:
        """Compute the program's values in place; on return the outputs are among them."""
        self._native.run(self.handle, values)

    @property
    def spans(self) -> List[Span]:
        """When each task of the last call ran."""
        return [Span(*span) for span in self._native.timeline(self.handle, False)]

    @property
    def backward_spans(self) -> List[Span]:
        """When each task of the last backward pass ran."""
        return [Span(*span) for span in self._native.timeline(self.handle, True)]


def _find_followers(tasks: Sequence[OperatorTask]) -> List[List[int]]:
    """Find for each task those that need it: in the backward pass they run before it."""
    followers: List[List[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for other in task.needs:
            followers[other].append(number)
    return followers


def find_shared_tasks(program: Program, tasks: Sequence[OperatorTask]) -> AbstractSet[int]:
    """Find tasks that any idle core may take over: those of slices, which are many, small and similar."""
    if not program.slices:
        return frozenset()
    return {number for number, task in enumerate(tasks) if all(program.slices[call] is not None for call in task.calls)}


def _bind_plan(
    plan: LanePlan,
    teams: Teams,
    needs: Optional[Sequence[Sequence[int]]] = None,
    shared: AbstractSet[int] = frozenset(),
) -> NativeSchedule:
    """Convert a plan to the CPUs of each thread, and the steps."""
    # Thread of each lane.
    threads: List[int] = []
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
        is_movable = step.task in shared and plan.lanes[step.lane].width == 1
        steps.append((step.task, threads[step.lane], step.lane, width, after, is_movable))
    _check_order(steps)
    return cpus, steps


def _check_order(steps: Sequence[NativeStep]) -> None:
    """Raise if threads would deadlock."""
    by_thread: Dict[int, List[Tuple[int, List[int]]]] = {}
    for task, thread, _, _, after, _ in steps:
        by_thread.setdefault(thread, []).append((task, after))
    ended: set[int] = set()
    places = dict.fromkeys(by_thread, 0)
    has_progress = True
    while has_progress:
        has_progress = False
        for thread, own_steps in by_thread.items():
            while places[thread] < len(own_steps) and ended.issuperset(own_steps[places[thread]][1]):
                ended.add(own_steps[places[thread]][0])
                places[thread] += 1
                has_progress = True
    if len(ended) != len(steps):
        stuck = [
            own_steps[places[thread]][0] for thread, own_steps in by_thread.items() if places[thread] < len(own_steps)
        ]
        raise ValueError(f"this plan never ends: tasks {stuck} wait for each other")


# Boxed calls by the id of the program.
_graphs: Dict[int, object] = {}
_lanes: weakref.WeakKeyDictionary[Teams, NativeLanes] = weakref.WeakKeyDictionary()


def get_native_lanes(teams: Teams) -> NativeLanes:
    """Return the C++ threads that belong to these teams; they end with them."""
    lanes = _lanes.get(teams)
    if lanes is None:
        native = load_native_module()
        lanes = _lanes[teams] = native.Lanes()
        teams.attach_threads(lanes)
        register_team_check(native.is_inside_a_run)
    return lanes


def get_native_graph(program: Program) -> object:
    """Return the program's calls, boxed; raise NotNativeError if one cannot be."""
    graph = _graphs.get(id(program))
    if graph is None:
        graph = _graphs[id(program)] = _build_graph(program)
        weakref.finalize(program, _graphs.pop, id(program), None)
    return graph


def _build_graph(program: Program) -> object:
    native = load_native_module()
    calls: List[BoxedCall] = []
    for call in program.calls:
        if not isinstance(call.target, torch._ops.OpOverload):
            raise NotNativeError(f"{call.name} calls Python ({getattr(call.target, '__name__', call.target)})")
        overload = call.target._overloadname
        calls.append(
            (
                call.target._schema.name,
                "" if overload == "default" else overload,
                call.args,
                dict(call.kwargs),
                call.results,
                call.has_several_results,
            )
        )
    outputs = list(dict.fromkeys(out.value for out in program.outputs if isinstance(out, Ref)))
    external = [*program.inputs, *program.state, *program.constants, *program.packed_values]
    try:
        return native.graph(program.num_values, calls, external, outputs, is_repeatable(program), Ref)
    except Exception as problem:
        raise NotNativeError(f"an operator cannot be boxed: {str(problem).splitlines()[0]}") from problem
