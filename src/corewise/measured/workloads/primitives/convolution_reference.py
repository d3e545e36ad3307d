"""Independent reference for convolutions: selected elements, summed in float64.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from corewise.measured.workloads.primitives.convolution import ConvolutionArguments
from corewise.measured.workloads.primitives.convolution_problem import ConvolutionProblem

# Checked positions per result; smaller results are checked completely.
MAX_POSITIONS = 320
Position = Tuple[int, ...]
# Two float64 arrays that are multiplied elementwise and summed.
Products = Tuple[Any, Any]
FORWARD, DATA, WEIGHTS, BIAS = "dst", "diff_src", "diff_wei", "diff_bia"
REFERENCE = "sums in float64 at selected positions"


def list_results(asked: ConvolutionArguments) -> Tuple[str, ...]:
    """Return the names of the results of a direction."""
    by_direction = {"BWD_D": (DATA,), "BWD_W": (WEIGHTS,), "BWD_WB": (WEIGHTS, BIAS)}
    return by_direction.get(asked.direction, (FORWARD,))


def count_terms(asked: ConvolutionArguments) -> int:
    """Return how many products one element of a result sums."""
    problem = asked.problem
    taps = math.prod(d.kernel for d in problem.dimensions)
    if asked.direction == "BWD_D":
        return problem.oc // problem.g * taps
    if not asked.direction.startswith("BWD"):
        return problem.ic // problem.g * taps
    return problem.mb * math.prod(d.destination for d in problem.dimensions)


def find_worst_error(
    problem: ConvolutionProblem, given: Mapping[str, Any], computed: Mapping[str, Any], seed: int
) -> float:
    """Return the largest error over all results of a direction; NaN counts as the largest."""
    errors = [find_largest_error(problem, name, given, array, seed) for name, array in computed.items()]
    return max(errors, key=lambda error: error if error == error else math.inf)


def choose_positions(shape: Tuple[int, ...], seed: int) -> List[Position]:
    """Return every position of a small array, or the first, the last and random positions of a larger one."""
    if math.prod(shape) <= MAX_POSITIONS:
        return list(np.ndindex(*shape))
    random = np.random.default_rng(seed)
    drawn = np.stack([random.integers(0, size, MAX_POSITIONS) for size in shape], axis=1)
    ends = [tuple(0 for _ in shape), tuple(size - 1 for size in shape)]
    return [*ends, *(tuple(int(i) for i in row) for row in drawn[2:])]


def build_products(problem: ConvolutionProblem, result: str, given: Mapping[str, Any]) -> Callable[..., Products]:
    """Return a function from a position of a result to the products that are summed there."""
    functions: Dict[str, Callable[..., Products]] = {
        FORWARD: _forward,
        DATA: _backward_data,
        WEIGHTS: _backward_weights,
        BIAS: _backward_bias,
    }
    return lambda position: functions[result](problem, given, position)


def find_largest_error(
    problem: ConvolutionProblem, result: str, given: Mapping[str, Any], computed: Any, seed: int
) -> float:
    """Return the largest error of a result, relative to the root of the sum of squared products."""
    products = build_products(problem, result, given)
    worst = 0.0
    for position in choose_positions(computed.shape, seed):
        a, b = products(position)
        expected, scale = float((a * b).sum()), float(np.sqrt(((a * b) ** 2).sum()))
        if result == FORWARD and given.get("bia") is not None:
            added = float(given["bia"][position[1]])
            expected, scale = expected + added, math.hypot(scale, added)
        error = abs(float(computed[position]) - expected) / (scale or 1.0)
        # The negated comparison lets NaN replace any number.
        worst = error if not error <= worst else worst
        if worst != worst:
            return worst
    return worst


def compute_int8_error(
    problem: ConvolutionProblem, given: Mapping[str, Any], computed: Any, divisor: float, seed: int
) -> float:
    """Return the largest difference of an int8 result from the exact sum, divided, rounded and clamped."""
    products = build_products(problem, FORWARD, given)
    limits = np.iinfo(computed.dtype)
    worst = 0.0
    for position in choose_positions(computed.shape, seed):
        a, b = products(position)
        exact = float((a * b).sum()) + (0.0 if given.get("bia") is None else float(given["bia"][position[1]]))
        expected = min(max(round(exact / divisor), limits.min), limits.max)
        worst = max(worst, abs(float(computed[position]) - expected))
    return worst


def _find_group(problem: ConvolutionProblem, oc: int) -> Tuple[slice, slice]:
    """Return the input and output channels of the group of an output channel."""
    num_in, num_out = problem.ic // problem.g, problem.oc // problem.g
    number = oc // num_out
    return slice(number * num_in, (number + 1) * num_in), slice(number * num_out, (number + 1) * num_out)


def _forward(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    sample, oc, *places = position
    sources: List[List[int]] = []
    taps: List[List[int]] = []
    for d, place in zip(problem.dimensions, places):
        met = [(d.find_source_index(place, tap), tap) for tap in range(d.kernel)]
        met = [(index, tap) for index, tap in met if 0 <= index < d.source]
        sources.append([index for index, _ in met])
        taps.append([tap for _, tap in met])
    channels, _ = _find_group(problem, oc)
    source = given["src"][sample, channels]
    weights = given["wei"][oc]
    return _to_float64(source[_index_all(source, sources)]), _to_float64(weights[_index_all(weights, taps)])


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
    _, channels = _find_group(problem, (ic // num_in) * (problem.oc // problem.g))
    gradient = given["diff_dst"][sample, channels]
    weights = given["wei"][channels, ic % num_in]
    return _to_float64(gradient[_index_all(gradient, outputs)]), _to_float64(weights[_index_all(weights, taps)])


def _backward_weights(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    oc, own_ic, *taps = position
    channels, _ = _find_group(problem, oc)
    read, written = [], []
    for d, tap in zip(problem.dimensions, taps):
        met = d.find_destinations(tap)
        first = d.find_source_index(met.start, tap)
        written.append(slice(met.start, met.stop))
        read.append(slice(first, first + max(0, len(met) - 1) * d.stride + 1 if len(met) else first, d.stride))
    source = given["src"][(slice(None), channels.start + own_ic, *read)]
    gradient = given["diff_dst"][(slice(None), oc, *written)]
    return _to_float64(source), _to_float64(gradient)


def _backward_bias(problem: ConvolutionProblem, given: Mapping[str, Any], position: Position) -> Products:
    gradient = _to_float64(given["diff_dst"][:, position[0]])
    return gradient, np.ones_like(gradient)


def _index_all(array: Any, places: List[List[int]]) -> Any:
    """Return an index of these positions in the last dimensions and of all in the first."""
    return np.ix_(range(array.shape[0]), *places)


def _to_float64(array: Any) -> Any:
    return np.asarray(array, dtype=np.float64)
