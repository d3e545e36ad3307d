"""Elements of a convolution's results summed up one by one in float64: an independent reference.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from corewise.workloads.primitives.convolution import Asked
from corewise.workloads.primitives.problem import ConvolutionProblem

MAX_POSITIONS = 320  # of each result; all of them where there are no more
Position = Tuple[int, ...]
Products = Tuple[Any, Any]  # what is multiplied pairwise and summed, in float64
FORWARD, DATA, WEIGHTS, BIAS = "dst", "diff_src", "diff_wei", "diff_bia"
REFERENCE = "sums in float64 at chosen places"


def results_of(asked: Asked) -> Tuple[str, ...]:
    """The names of what a direction computes."""
    by_direction = {"BWD_D": (DATA,), "BWD_W": (WEIGHTS,), "BWD_WB": (WEIGHTS, BIAS)}
    return by_direction.get(asked.direction, (FORWARD,))


def num_terms(asked: Asked) -> int:
    """How many products an element of the direction's results sums up."""
    problem = asked.problem
    taps = math.prod(d.kernel for d in problem.dimensions)
    if asked.direction == "BWD_D":
        return problem.oc // problem.g * taps
    if not asked.direction.startswith("BWD"):
        return problem.ic // problem.g * taps
    return problem.mb * math.prod(d.destination for d in problem.dimensions)


def worst_error(
    problem: ConvolutionProblem, given: Mapping[str, Any], computed: Mapping[str, Any], seed: int
) -> float:
    """The worst error over all results of a direction."""
    errors = [largest_error(problem, name, given, array, seed) for name, array in computed.items()]
    return max(errors, key=lambda error: error if error == error else math.inf)


def positions(shape: Tuple[int, ...], seed: int) -> List[Position]:
    """Every position of a small array; of a larger one the two ends and random ones."""
    if math.prod(shape) <= MAX_POSITIONS:
        return list(np.ndindex(*shape))
    random = np.random.default_rng(seed)
    drawn = np.stack([random.integers(0, size, MAX_POSITIONS) for size in shape], axis=1)
    ends = [tuple(0 for _ in shape), tuple(size - 1 for size in shape)]
    return [*ends, *(tuple(int(i) for i in row) for row in drawn[2:])]


def products_of(
    problem: ConvolutionProblem, result: str, given: Mapping[str, Any]
) -> Callable[..., Products]:
    """What turns a position of a result into the products that it is the sum of."""
    made: Dict[str, Callable[..., Products]] = {
        FORWARD: _forward,
        DATA: _backward_data,
        WEIGHTS: _backward_weights,
        BIAS: _backward_bias,
    }
    return lambda position: made[result](problem, given, position)


def largest_error(
    problem: ConvolutionProblem, result: str, given: Mapping[str, Any], computed: Any, seed: int
) -> float:
    """The worst error of a result, in units of the root of the sum of the squared products."""
    products = products_of(problem, result, given)
    worst = 0.0
    for position in positions(computed.shape, seed):
        a, b = products(position)
        wanted, scale = float((a * b).sum()), float(np.sqrt(((a * b) ** 2).sum()))
        if result == FORWARD and given.get("bia") is not None:
            added = float(given["bia"][position[1]])
            wanted, scale = wanted + added, math.hypot(scale, added)
        error = abs(float(computed[position]) - wanted) / (scale or 1.0)
        worst = error if not error <= worst else worst  # NaN wins and stays
        if worst != worst:
            return worst
    return worst


def whole_number_error(
    problem: ConvolutionProblem, given: Mapping[str, Any], computed: Any, divisor: float, seed: int
) -> float:
    """The worst difference of an int8 result from the exact sum, divided, rounded and cut to eight bits."""
    products = products_of(problem, FORWARD, given)
    limits = np.iinfo(computed.dtype)
    worst = 0.0
    for position in positions(computed.shape, seed):
        a, b = products(position)
        exact = float((a * b).sum()) + (0.0 if given.get("bia") is None else float(given["bia"][position[1]]))
        wanted = min(max(round(exact / divisor), limits.min), limits.max)
        worst = max(worst, abs(float(computed[position]) - wanted))
    return worst


def _group(problem: ConvolutionProblem, oc: int) -> Tuple[slice, slice]:
    """The input and output channels of the group that an output channel belongs to."""
    num_in, num_out = problem.ic // problem.g, problem.oc // problem.g
    number = oc // num_out
    return slice(number * num_in, (number + 1) * num_in), slice(number * num_out, (number + 1) * num_out)


def _forward(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    sample, oc, *places = position
    sources: List[List[int]] = []
    taps: List[List[int]] = []
    for d, place in zip(problem.dimensions, places):
        met = [(d.source_index(place, tap), tap) for tap in range(d.kernel)]
        met = [(index, tap) for index, tap in met if 0 <= index < d.source]
        sources.append([index for index, _ in met])
        taps.append([tap for _, tap in met])
    channels, _ = _group(problem, oc)
    source = given["src"][sample, channels]
    weights = given["wei"][oc]
    return _double(source[_of_all(source, sources)]), _double(weights[_of_all(weights, taps)])


def _backward_data(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    sample, ic, *places = position
    outputs: List[List[int]] = []
    taps: List[List[int]] = []
    for d, place in zip(problem.dimensions, places):
        met = [(place + d.padding - tap * (d.dilation + 1), tap) for tap in range(d.kernel)]
        met = [(at // d.stride, tap) for at, tap in met if at % d.stride == 0]
        met = [(at, tap) for at, tap in met if 0 <= at < d.destination]
        outputs.append([at for at, _ in met])
        taps.append([tap for _, tap in met])
    num_in = problem.ic // problem.g
    _, channels = _group(problem, (ic // num_in) * (problem.oc // problem.g))
    gradient = given["diff_dst"][sample, channels]
    weights = given["wei"][channels, ic % num_in]
    return _double(gradient[_of_all(gradient, outputs)]), _double(weights[_of_all(weights, taps)])


def _backward_weights(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    oc, own_ic, *taps = position
    channels, _ = _group(problem, oc)
    read, written = [], []
    for d, tap in zip(problem.dimensions, taps):
        met = d.destinations_of(tap)
        first = d.source_index(met.start, tap)
        written.append(slice(met.start, met.stop))
        read.append(
            slice(first, first + max(0, len(met) - 1) * d.stride + 1 if len(met) else first, d.stride)
        )
    source = given["src"][(slice(None), channels.start + own_ic, *read)]
    gradient = given["diff_dst"][(slice(None), oc, *written)]
    return _double(source), _double(gradient)


def _backward_bias(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    gradient = _double(given["diff_dst"][:, position[0]])
    return gradient, np.ones_like(gradient)


def _of_all(array: Any, places: List[List[int]]) -> Any:
    """An index of these places in the last dimensions, of all in the first."""
    return np.ix_(range(array.shape[0]), *places)


def _double(array: Any) -> Any:
    return np.asarray(array, dtype=np.float64)
