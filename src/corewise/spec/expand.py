"""A study on a machine -> its points, and the points that do not exist there with the reason."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corewise.spec.arguments import check_arguments, default_arguments, without_others_arguments
from corewise.spec.axes import AXES, AxisValue, Word, check_count, evaluation_order
from corewise.spec.errors import UserError
from corewise.spec.expressions import Expression, ExpressionError
from corewise.spec.feasibility import Circumstances, reasons_against
from corewise.spec.feasibility import MachineView as MachineView
from corewise.spec.sections import candidates_of_all
from corewise.spec.study import Study
from corewise.workloads.base import Workload, own_defaults

MAX_POINTS = 100_000

FindWorkload = Callable[[str], Workload]


@dataclass(frozen=True)
class Point:
    """One point of a study; every parameter is present and concrete."""

    params: Mapping[str, Any]


@dataclass(frozen=True)
class SkippedPoint:
    """A point that cannot be measured here; an expression without a value stands as its text."""

    params: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Expansion:
    """All that a study means on one machine."""

    points: tuple[Point, ...]
    skipped: tuple[SkippedPoint, ...]
    num_excluded: int  # by constraints: not part of the study


def expand(
    study: Study,
    machine: MachineView,
    *,
    find_workload: FindWorkload | None = None,
    hints: Mapping[str, str] | None = None,
) -> Expansion:
    """The points of the study on the machine; a UserError when the study has none at all.

    `hints` says of a missing library how to install it.
    """
    workloads = {name: _find(study, name, find_workload or _registered) for name in study.workloads}
    circumstances = {
        name: Circumstances(machine, workload, hints or {}) for name, workload in workloads.items()
    }
    check_arguments(study, workloads, lambda name: _find(study, name, find_workload or _registered))
    _check_folders(study)
    _check_size(study, machine, candidates_of_all(study.axes, study.fixed))
    sorter = _Sorter(study, machine)
    for name, mode, runtime in itertools.product(study.workloads, study.modes, study.runtimes):
        axes = without_others_arguments(study.axes, workloads[name])
        fixed = without_others_arguments(study.fixed, workloads[name])
        candidates = candidates_of_all(axes, {**own_defaults(workloads[name]), **fixed})
        order = evaluation_order(candidates)
        start = {
            "workload": name,
            "mode": mode,
            "runtime": runtime,
            **default_arguments(workloads[name]),
        }
        for values in _combinations(candidates, machine):
            sorter.add({**start, **values}, order, circumstances[name])
    return sorter.expansion()


class _Sorter:
    """Puts each point where it belongs: measured, skipped, or no part of the study."""

    def __init__(self, study: Study, machine: MachineView) -> None:
        self.study = study
        self.machine = machine
        self.seen = set[tuple[str, ...]]()
        self.points = list[Point]()
        self.skipped = list[SkippedPoint]()
        self.num_excluded = 0
        self.num_failing = Counter[int]()  # points that fail a constraint, by its index

    def add(self, values: dict[str, Any], order: tuple[str, ...], circumstances: Circumstances) -> None:
        params, reason = _concrete(values, order, self.machine)
        identity = tuple(f"{name}={value!r}" for name, value in params.items())
        if identity in self.seen:
            return
        self.seen.add(identity)
        if not reason:
            failing, reason = self._failing_constraints(params)
            if failing:
                self.num_excluded += 1
                self.num_failing.update(failing)
                return
        reason = reason or "; ".join(reasons_against(params, circumstances))
        if reason:
            self.skipped.append(SkippedPoint(params, reason))
        else:
            self.points.append(Point(params))

    def _failing_constraints(self, params: Mapping[str, Any]) -> tuple[list[int], str]:
        """The constraints the point does not meet; or why that cannot be said."""
        names = {**params, **_machine_names(params, self.machine)}
        failing, reason = list[int](), ""
        for index, constraint in enumerate(self.study.constraints):
            try:
                if not constraint.condition.evaluate(names):
                    failing.append(index)
            except ExpressionError as error:
                reason = reason or f"constraint ({constraint.where}): {error}"
        return failing, reason

    def expansion(self) -> Expansion:
        if not self.points and not self.skipped:
            raise UserError(self._why_empty())
        return Expansion(tuple(self.points), tuple(self.skipped), self.num_excluded)

    def _why_empty(self) -> str:
        lines = [
            f"{self.study.path}: none of the study's {self.num_excluded} points meets its constraints here:"
        ]
        for index, count in self.num_failing.most_common():
            constraint = self.study.constraints[index]
            lines.append(f"  {constraint.where}: {count} fail {constraint.condition.text!r}")
        cores = f"{self.machine.num_cores} cores, {self.machine.num_cpus} CPUs"
        return "\n".join(
            [*lines, f"The allocation has {cores}; give the axes other values or loosen a constraint."]
        )


def _combinations(
    candidates: Mapping[str, tuple[AxisValue, ...]], machine: MachineView
) -> Iterator[dict[str, AxisValue]]:
    """The product of the axes in the file's order; words become numbers, expressions stay as they are."""
    found = list[tuple[tuple[int, ...], dict[str, AxisValue]]]()
    names = list(candidates)
    for setting in _settings(candidates):
        allocation = max(1, machine.allocation(smt=setting[0][1], num_reserved_cores=setting[1][1]))
        pinned = dict(zip(("smt", "reserved_cores"), setting, strict=True))
        choices = [
            [pinned[name]] if name in pinned else list(enumerate(_resolved(candidates[name], allocation)))
            for name in names
        ]
        for combination in itertools.product(*choices):
            indices = tuple(index for index, _ in combination)
            found.append((indices, dict(zip(names, (value for _, value in combination), strict=True))))
    found.sort(key=lambda pair: pair[0])
    return (values for _, values in found)


def _settings(
    candidates: Mapping[str, tuple[AxisValue, ...]],
) -> Iterator[tuple[tuple[int, Any], tuple[int, Any]]]:
    """Each pair of `smt` and `reserved_cores`, numbered: the allocation depends on them."""
    return itertools.product(enumerate(candidates["smt"]), enumerate(candidates["reserved_cores"]))


def _resolved(values: tuple[AxisValue, ...], allocation: int) -> tuple[AxisValue, ...]:
    resolved = list[AxisValue]()
    for value in values:
        resolved.extend(value.numbers(allocation) if isinstance(value, Word) else (value,))
    return tuple(resolved)


def _concrete(
    values: dict[str, Any], order: tuple[str, ...], machine: MachineView
) -> tuple[dict[str, Any], str]:
    """The parameters with every expression worked out, and why one could not be."""
    params, reason = {name: values[name] for name in sorted(values, key=_canonical)}, ""
    names = {**values, **_machine_names(values, machine)}
    for name in order:
        expression = values[name]
        if not isinstance(expression, Expression):
            continue
        params[name] = f"= {expression.text}"
        if reason:
            continue
        try:
            names[name] = params[name] = _worked_out(name, expression.evaluate(names))
        except ExpressionError as error:
            reason = f"{name}: {error}"
        except ValueError as error:
            reason = f"{error} (from '= {expression.text}')"
    return params, reason


def _canonical(name: str) -> tuple[int, str]:
    """Where a parameter stands among the others, whatever the order of the study file."""
    known = ("workload", "mode", "runtime", *AXES)
    return (known.index(name), "") if name in known else (len(known), name)


def _worked_out(name: str, value: Any) -> Any:
    """The value of an expression as its axis takes it: a whole number where one is needed."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, not {value}")
        if value.is_integer():
            value = int(value)
    if name in AXES:
        check_count(AXES[name], value)
    return value


def _machine_names(params: Mapping[str, Any], machine: MachineView) -> dict[str, int]:
    allocation = machine.allocation(smt=params["smt"], num_reserved_cores=params["reserved_cores"])
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
            len(_resolved(values, max(1, machine.allocation(smt=smt, num_reserved_cores=reserved))))
            for name, values in candidates.items()
            if name not in ("smt", "reserved_cores")
        )
        for (_, smt), (_, reserved) in _settings(candidates)
    )
    num_points *= len(study.workloads) * len(study.modes) * len(study.runtimes)
    if num_points > MAX_POINTS:
        sizes = ", ".join(f"{name} {len(values)}" for name, values in study.axes.items())
        raise UserError(
            f"{study.path}: the axes make {num_points:,} points, more than {MAX_POINTS:,}; "
            f"give fewer values (now: {sizes})"
        )


def _registered(name: str) -> Workload:
    from corewise.workloads.registry import find_workload

    return find_workload(name)


def _find(study: Study, name: str, find: FindWorkload) -> Workload | None:
    """The workload of that name; None for a user's own file."""
    if ":" in name:
        return None
    try:
        return find(name)
    except (LookupError, ImportError, AttributeError, UserError) as error:
        said = error.args[0] if error.args else error
        raise UserError(f"{study.where(name)}: {said}") from None


def _check_folders(study: Study) -> None:
    for folder in (*study.axes.get("data", ()), study.fixed.get("data", "synthetic")):
        if folder != "synthetic" and not os.path.isdir(str(folder)):
            raise UserError(
                f"{study.where('data')}: no such folder: {folder}; give a folder of images, or `synthetic`"
            )
