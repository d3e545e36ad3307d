"""One convolution on any framework's arrays, as its users lay them out: no reorders to choose.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterable, Mapping, Sequence, Tuple

import numpy as np

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob, Facts, require_primitive, tolerance_of
from corewise.runtimes.base import Check, RankContext
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.convolution import (
    CONVOLUTION,
    WITH_BIAS,
    Asked,
    is_forward,
    types_of,
)
from corewise.workloads.primitives.sampled_sums import (
    REFERENCE,
    num_terms,
    results_of,
    worst_error,
)

NOUN = "convolution"
Operator = Callable[..., Sequence[Any]]  # takes the arrays of `inputs_of`, returns those of `results_of`


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a framework lays images out, and its operator for what is asked."""

    channels_last: bool  # N…C and …IO; otherwise NC… and OI…
    operator: Callable[[Asked], Operator]
    memory_factor: float  # what was found to be taken on a CPU at the most, over what the workload says

    def laid_out(self, name: str, shape: Tuple[int, ...]) -> Tuple[int, ...]:
        """The framework's shape of one of benchdnn's tensors."""
        if not self.channels_last or len(shape) == 1:
            return shape
        if name == "wei":
            return (*shape[2:], shape[1], shape[0])
        return (shape[0], *shape[2:], shape[1])

    def as_benchdnn(self, name: str, array: Any) -> Any:
        """The framework's array as benchdnn lays it out."""
        if not self.channels_last or array.ndim == 1:
            return array
        if name.endswith("wei"):
            return np.transpose(array, (array.ndim - 1, array.ndim - 2, *range(array.ndim - 2)))
        return np.moveaxis(array, -1, 1)


def inputs_of(asked: Asked) -> Dict[str, Tuple[int, ...]]:
    """The shapes of what the direction reads, by name, in the operator's order."""
    problem, direction = asked.problem, asked.direction
    source, weights = {"src": problem.source_shape}, {"wei": problem.weights_shape}
    if is_forward(direction):
        bias = {"bia": (problem.oc,)} if direction in WITH_BIAS else {}
        return {**source, **weights, **bias}
    gradient = {"diff_dst": problem.destination_shape}
    return {**gradient, **(weights if direction == "BWD_D" else source)}


def prepare_arrays_convolution(
    arrays: Arrays, dialect: Dialect, params: Mapping[str, Any], context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """The job; raises Infeasible with the reason where the framework has no such convolution."""
    factor = dialect.memory_factor if arrays.device == "cpu" else 1.0
    require_primitive(arrays, CONVOLUTION, NOUN, params, context, factor)
    asked, dtype, seed = CONVOLUTION.asked(workload_args(params)), str(params["dtype"]), context.rank
    given = {
        name: arrays.normal(dialect.laid_out(name, shape), dtype, 10 * seed + number)
        for number, (name, shape) in enumerate(inputs_of(asked).items())
    }
    operator, inputs = arrays.compiled(dialect.operator(asked)), tuple(given.values())

    def plain(named: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
        return {name: dialect.as_benchdnn(name, arrays.to_host(array)) for name, array in named}

    def check(results: Sequence[Any]) -> Check:
        """Chosen elements of every result against their sums in float64."""
        computed = plain(zip(results_of(asked), results))
        error = worst_error(asked.problem, plain(given.items()), computed, seed)
        return Check(error, tolerance_of(params, num_terms(asked)), REFERENCE)

    told = {
        "problem": str(asked.problem),
        "types": types_of(dtype, asked.int8_source),
        "direction": asked.direction,
    }
    return ArraysPrimitiveJob(arrays, NOUN, lambda: operator(*inputs), check, lambda: {**facts(), **told})
