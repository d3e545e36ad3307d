"""Assign `args.NAME` of a study to the workloads that have this parameter, and report unknown ones."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from corewise.errors import UserError, suggest_nearest
from corewise.measured.workloads.base import Workload
from corewise.study.axes import AxisValue
from corewise.study.study import Study
from corewise.study.syntax.expressions import Expression

PREFIX = "args."
T = TypeVar("T")


def list_default_arguments(workload: Workload | None) -> dict[str, object]:
    """Return a workload's parameters with their defaults; none are known for a user's own file."""
    return {f"{PREFIX}{name}": value for name, value in workload.parameters.items()} if workload else {}


def drop_unknown_arguments(given: Mapping[str, T], workload: Workload | None) -> dict[str, T]:
    """Return the axes without parameters that the workload lacks; a user's own file accepts all."""
    return {
        axis: value
        for axis, value in given.items()
        if workload is None or not axis.startswith(PREFIX) or axis.removeprefix(PREFIX) in workload.parameters
    }


def check_arguments(
    study: Study, workloads: Mapping[str, Workload | None], find: Callable[[str], Workload | None]
) -> None:
    """Raise UserError for an `args.NAME` that no workload has, or of another type than its default."""
    given = {**{name: (value,) for name, value in study.fixed.items()}, **study.axes}
    known = [workload for workload in workloads.values() if workload is not None]
    for axis, values in given.items():
        if not axis.startswith(PREFIX):
            continue
        name = axis.removeprefix(PREFIX)
        owners = [workload for workload in known if name in workload.parameters]
        if not owners and len(known) == len(workloads) and not _is_for_excluded_workload(study, axis, find):
            raise UserError(f"{study.find_origin(axis)}: {_explain_unknown(name, known)}")
        for value, workload in itertools.product(values, owners):
            default = workload.parameters[name]
            if not _has_type_of(value, default):
                raise UserError(f"{study.find_origin(axis)}: {axis} needs a value like {default!r}, not {value!r}")


def _is_for_excluded_workload(study: Study, axis: str, find: Callable[[str], Workload | None]) -> bool:
    """Return whether the parameter belongs to a workload of the file that `--set` did not select."""
    if study.find_origin(axis).startswith("--set"):
        return False
    excluded = (find(name) for name in study.excluded_workloads)
    return any(each is None or axis.removeprefix(PREFIX) in each.parameters for each in excluded)


def _explain_unknown(name: str, workloads: Sequence[Workload]) -> str:
    known = list(dict.fromkeys(each for workload in workloads for each in workload.parameters))
    if len(workloads) == 1:
        who, none = f"{workloads[0].name} has no", "it has none"
    else:
        who, none = f"none of {', '.join(each.name for each in workloads)} has a", "they have none"
    return f"{who} parameter {name!r}; {suggest_nearest(name, known) if known else none}"


def _has_type_of(value: AxisValue, default: object) -> bool:
    if default is None or isinstance(value, Expression):
        return True
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)
