"""Expand a study on a machine into its points and into skipped points with their reasons."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corewise.errors import UserError
from corewise.measured.parameters import GENERATED_DATA, TrialParameters
from corewise.measured.workloads.base import Workload, list_axis_defaults
from corewise.study.axes import AXES, AxisValue, Keyword, check_count, check_finite, order_by_dependency
from corewise.study.planning.feasibility import FeasibilityContext, explain_infeasibility
from corewise.study.planning.feasibility import MachineView as MachineView
from corewise.study.planning.workload_arguments import check_arguments, drop_unknown_arguments, list_default_arguments
from corewise.study.study import Study
from corewise.study.study_sections import list_candidates
from corewise.study.syntax.expressions import Expression, ExpressionError

MAX_POINTS = 100_000

# Finds a workload by its name, None if its properties are unknown.
FindWorkload = Callable[[str], Workload | None]


@dataclass(frozen=True)
class Point:
    """One point of a study with a concrete value for every parameter."""

    params: Mapping[str, Any]


@dataclass(frozen=True)
class SkippedPoint:
    """A point that cannot be measured on this machine; an expression without a value stays a text."""

    params: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Expansion:
    """The points of a study on one machine; `num_excluded` counts those that the constraints rule out."""

    points: tuple[Point, ...]
    skipped: tuple[SkippedPoint, ...]
    num_excluded: int


def expand_study(
    study: Study,
    machine: MachineView,
    *,
    find_workload: FindWorkload | None = None,
    hints: Mapping[str, str] | None = None,
) -> Expansion:
    """Return the points of the study on the machine.

    Args:
        study: the checked study.
        machine: the facts of the machine that decide which points exist.
        find_workload: the lookup of a workload by name; the registry by default.
        hints: how to install each library that may be missing.

    Raises:
        UserError: the study has no points, too many, or unknown workloads, arguments or folders.
    """
    workloads = {name: _find_workload(study, name, find_workload or _find_registered) for name in study.workloads}
    contexts = {name: FeasibilityContext(machine, workload, hints or {}) for name, workload in workloads.items()}
    check_arguments(study, workloads, lambda name: _find_workload(study, name, find_workload or _find_registered))
    _check_folders(study)
    _check_size(study, machine, list_candidates(study.axes, study.fixed))
    sorter = _PointSorter(study, machine)
    for name, mode, runtime in itertools.product(study.workloads, study.modes, study.runtimes):
        axes = drop_unknown_arguments(study.axes, workloads[name])
        fixed = drop_unknown_arguments(study.fixed, workloads[name])
        candidates = list_candidates(axes, {**list_axis_defaults(workloads[name]), **fixed})
        order = order_by_dependency(candidates)
        start = {"workload": name, "mode": mode, "runtime": runtime, **list_default_arguments(workloads[name])}
        for values in _combine_axes(candidates, machine):
            sorter.add({**start, **values}, order, contexts[name])
    return sorter.build_expansion()


class _PointSorter:
    """Sorts points into those to measure, those to skip and those that the constraints exclude."""

    def __init__(self, study: Study, machine: MachineView) -> None:
        self.study = study
        self.machine = machine
        self.known_points = set[tuple[str, ...]]()
        self.points = list[Point]()
        self.skipped = list[SkippedPoint]()
        self.num_excluded = 0
        # The number of points that fail each constraint, by the constraint's index.
        self.num_failing = Counter[int]()

    def add(self, values: dict[str, Any], order: tuple[str, ...], context: FeasibilityContext) -> None:
        params, reason = _evaluate_params(values, order, self.machine)
        identity = tuple(f"{name}={value!r}" for name, value in params.items())
        if identity in self.known_points:
            return
        self.known_points.add(identity)
        if not reason:
            failing, reason = self._find_failing_constraints(params)
            if failing:
                self.num_excluded += 1
                self.num_failing.update(failing)
                return
        reason = reason or "; ".join(explain_infeasibility(TrialParameters.from_mapping(params), context))
        if reason:
            self.skipped.append(SkippedPoint(params, reason))
        else:
            self.points.append(Point(params))

    def _find_failing_constraints(self, params: Mapping[str, Any]) -> tuple[list[int], str]:
        """Return the constraints that the point fails, or why they cannot be evaluated."""
        names = {**params, **_collect_machine_values(params, self.machine)}
        failing, reason = list[int](), ""
        for index, constraint in enumerate(self.study.constraints):
            try:
                if not constraint.condition.evaluate(names):
                    failing.append(index)
            except ExpressionError as error:
                reason = reason or f"constraint ({constraint.origin}): {error}"
        return failing, reason

    def build_expansion(self) -> Expansion:
        if not self.points and not self.skipped:
            raise UserError(self._explain_empty())
        return Expansion(tuple(self.points), tuple(self.skipped), self.num_excluded)

    def _explain_empty(self) -> str:
        lines = [f"{self.study.path}: none of the study's {self.num_excluded} points meets its constraints:"]
        for index, count in self.num_failing.most_common():
            constraint = self.study.constraints[index]
            lines.append(f"  {constraint.origin}: {count} fail {constraint.condition.text!r}")
        cores = f"{self.machine.num_cores} cores, {self.machine.num_cpus} CPUs"
        return "\n".join([*lines, f"The allocation has {cores}; give the axes other values or loosen a constraint."])


def _combine_axes(
    candidates: Mapping[str, tuple[AxisValue, ...]], machine: MachineView
) -> Iterator[dict[str, AxisValue]]:
    """Yield the product of the axes in the file's order, with keywords as numbers; expressions stay."""
    combinations = list[tuple[tuple[int, ...], dict[str, AxisValue]]]()
    names = list(candidates)
    for setting in _list_allocation_settings(candidates):
        allocation = max(1, machine.count_usable(smt=setting[0][1], num_reserved_cores=setting[1][1]))
        pinned = dict(zip(("smt", "reserved_cores"), setting, strict=True))
        choices = [
            [pinned[name]]
            if name in pinned
            else list(
                enumerate(_resolve_keywords(candidates[name], allocation, machine.count_socket(smt=setting[0][1])))
            )
            for name in names
        ]
        for combination in itertools.product(*choices):
            indices = tuple(index for index, _ in combination)
            combinations.append((indices, dict(zip(names, (value for _, value in combination), strict=True))))
    combinations.sort(key=lambda pair: pair[0])
    return (values for _, values in combinations)


def _list_allocation_settings(
    candidates: Mapping[str, tuple[AxisValue, ...]],
) -> Iterator[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Yield each pair of `smt` and `reserved_cores`, numbered: the allocation depends on them."""
    return itertools.product(enumerate(candidates["smt"]), enumerate(candidates["reserved_cores"]))


def _resolve_keywords(values: tuple[AxisValue, ...], allocation: int, num_on_socket: int) -> tuple[AxisValue, ...]:
    """Return the values with keywords as numbers; a keyword that stands for none here stays."""
    resolved = list[AxisValue]()
    for value in values:
        numbers = value.resolve(allocation, num_on_socket) if isinstance(value, Keyword) else ()
        resolved.extend(numbers or (value,))
    return tuple(resolved)


def _evaluate_params(
    values: dict[str, Any], order: tuple[str, ...], machine: MachineView
) -> tuple[dict[str, Any], str]:
    """Return the parameters with all expressions evaluated, and the reason if one has no value."""
    params, reason = {name: values[name] for name in sorted(values, key=_rank_parameter)}, ""
    names = {**values, **_collect_machine_values(values, machine)}
    for name, value in values.items():
        if isinstance(value, Keyword):
            params[name], reason = value.text, _explain_keyword(name, value, machine)
    for name in order:
        expression = values[name]
        if not isinstance(expression, Expression):
            continue
        params[name] = f"= {expression.text}"
        if reason:
            continue
        try:
            names[name] = params[name] = _convert_result(name, expression.evaluate(names))
        except ExpressionError as error:
            reason = f"{name}: {error}"
        except ValueError as error:
            reason = f"{error} (from '= {expression.text}')"
    return params, reason


def _explain_keyword(name: str, keyword: Keyword, machine: MachineView) -> str:
    """Explain why a keyword stands for no number on this machine."""
    cores = f"{machine.num_cores} core" if machine.num_cores == 1 else f"{machine.num_cores} cores"
    return (
        f"{name}: {keyword.text}: the allocation of {cores} holds no socket as a whole; "
        "ask for a whole socket, or use `node` for all cores of the allocation"
    )


def _rank_parameter(name: str) -> tuple[int, str]:
    """Return the sort key of a parameter, which does not depend on the order of the study file."""
    known = ("workload", "mode", "runtime", *AXES)
    return (known.index(name), "") if name in known else (len(known), name)


def _convert_result(name: str, value: Any) -> Any:
    """Check the value of an expression for its axis; a float without fraction becomes an int."""
    check_finite(name, value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if name in AXES:
        check_count(AXES[name], value)
    return value


def _collect_machine_values(params: Mapping[str, Any], machine: MachineView) -> dict[str, int]:
    allocation = machine.count_usable(smt=params["smt"], num_reserved_cores=params["reserved_cores"])
    return {
        "allocation": max(1, allocation),
        "cores": machine.num_cores,
        "cpus": machine.num_cpus,
        "numa_nodes": machine.num_numa_nodes,
        "sockets": machine.num_sockets,
    }


def _check_size(study: Study, machine: MachineView, candidates: Mapping[str, tuple[AxisValue, ...]]) -> None:
    num_points = sum(
        math.prod(
            len(_resolve_keywords(values, max(1, machine.count_usable(smt=smt, num_reserved_cores=reserved)), 0))
            for name, values in candidates.items()
            if name not in ("smt", "reserved_cores")
        )
        for (_, smt), (_, reserved) in _list_allocation_settings(candidates)
    )
    num_points *= len(study.workloads) * len(study.modes) * len(study.runtimes)
    if num_points > MAX_POINTS:
        sizes = ", ".join(f"{name} {len(values)}" for name, values in study.axes.items())
        raise UserError(
            f"{study.path}: the axes make {num_points:,} points, more than {MAX_POINTS:,}; "
            f"give fewer values (now: {sizes})"
        )


def _find_registered(name: str) -> Workload:
    from corewise.measured.workloads.registry import find_workload

    return find_workload(name)


def _find_workload(study: Study, name: str, find: FindWorkload) -> Workload | None:
    """Return the workload of that name, or None if its properties are unknown, as of a user's own file."""
    if ":" in name:
        return None
    try:
        return find(name)
    except (LookupError, ImportError, AttributeError, UserError) as error:
        message = error.args[0] if error.args else error
        raise UserError(f"{study.find_origin(name)}: {message}") from None


def _check_folders(study: Study) -> None:
    for folder in (*study.axes.get("data", ()), study.fixed.get("data", "synthetic")):
        if folder not in GENERATED_DATA and not os.path.isdir(str(folder)):
            raise UserError(
                f"{study.find_origin('data')}: no such folder: {folder}; use images, `synthetic` or `labelled`"
            )
