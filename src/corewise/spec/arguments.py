"""The parameters of workloads in a study, `args.NAME`: whose they are, and those that are nobody's."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from corewise.spec.axes import AxisValue
from corewise.spec.errors import UserError, nearest
from corewise.spec.expressions import Expression
from corewise.spec.study import Study
from corewise.workloads.base import Workload

PREFIX = "args."
T = TypeVar("T")


def default_arguments(workload: Workload | None) -> dict[str, object]:
    """The parameters of a workload with their defaults; of a user's own file none are known."""
    return {f"{PREFIX}{name}": value for name, value in workload.parameters.items()} if workload else {}


def without_others_arguments(given: Mapping[str, T], workload: Workload | None) -> dict[str, T]:
    """What is given less the parameters that this workload does not have; a user's own file takes any."""
    return {
        axis: value
        for axis, value in given.items()
        if workload is None or not axis.startswith(PREFIX) or axis.removeprefix(PREFIX) in workload.parameters
    }


def check_arguments(
    study: Study, workloads: Mapping[str, Workload | None], find: Callable[[str], Workload | None]
) -> None:
    """Refuses `args.NAME` that none of the workloads has, or of another type than its default."""
    given = {**{name: (value,) for name, value in study.fixed.items()}, **study.axes}
    known = [workload for workload in workloads.values() if workload is not None]
    for axis, values in given.items():
        if not axis.startswith(PREFIX):
            continue
        name = axis.removeprefix(PREFIX)
        having = [workload for workload in known if name in workload.parameters]
        if not having and len(known) == len(workloads) and not _is_of_one_left_out(study, axis, find):
            raise UserError(f"{study.where(axis)}: {_why_unknown(name, known)}")
        for value, workload in itertools.product(values, having):
            default = workload.parameters[name]
            if not _same_kind(value, default):
                raise UserError(f"{study.where(axis)}: {axis} is a value like {default!r}, not {value!r}")


def _is_of_one_left_out(study: Study, axis: str, find: Callable[[str], Workload | None]) -> bool:
    """True when the file gives the parameter to a workload of its list that `--set workload` left out."""
    if study.where(axis).startswith("--set"):
        return False
    left_out = (find(name) for name in study.left_out)
    return any(each is None or axis.removeprefix(PREFIX) in each.parameters for each in left_out)


def _why_unknown(name: str, workloads: Sequence[Workload]) -> str:
    known = list(dict.fromkeys(each for workload in workloads for each in workload.parameters))
    if len(workloads) == 1:
        who, none = f"{workloads[0].name} has no", "it has none"
    else:
        who, none = f"none of {', '.join(each.name for each in workloads)} has a", "they have none"
    return f"{who} parameter {name!r}; {nearest(name, known) if known else none}"


def _same_kind(value: AxisValue, default: object) -> bool:
    if default is None or isinstance(value, Expression):
        return True
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)
