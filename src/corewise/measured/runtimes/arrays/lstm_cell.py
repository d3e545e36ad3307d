"""LSTM cells on the arrays of any framework: forward, and backward by its automatic differentiation.

Measured side: standard library and numpy only, Python 3.9. Weights have the usual layout of these frameworks,
input × gates, with one bias; the order of the gates is input, forget, cell, output.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.arrays.array_contract import Arrays
from corewise.measured.runtimes.arrays.primitive_job import (
    ArraysPrimitiveJob,
    Facts,
    compute_tolerance,
    require_primitive,
)
from corewise.measured.runtimes.base import Check, Infeasible, RankContext
from corewise.measured.workloads.primitives.lstm_cell import LSTM_CELL, LstmArguments, format_cell_types
from corewise.measured.workloads.primitives.lstm_problem import NUM_GATES, RecurrentProblem
from corewise.measured.workloads.primitives.lstm_reference import (
    LayerWeights,
    find_worst_difference,
    run_backward,
    run_forward,
)

NOUN = "LSTM cell"
# Distance of the seeds of two ranks, larger than the number of arrays of one rank.
SEED_STRIDE = 1000
# The inputs that precede the weights.
INITIAL_NAMES = ("x", "states", "cells")
Function = Callable[..., Tuple[Any, ...]]
Backward = Callable[[Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Differentiation:
    """The automatic differentiation of a framework.

    Attributes:
        record: wraps a function so that it also returns the state for the backward pass.
        backward: runs a function and returns its results and its backward pass.
    """

    record: Callable[[Function], Function]
    backward: Callable[[Function, Sequence[Any]], Tuple[Sequence[Any], Backward]]


@dataclasses.dataclass(frozen=True)
class RecurrentDialect:
    """The operations of a framework that LSTM cells consist of.

    Attributes:
        scan: takes a step, its initial state and a sequence; returns the last state and all outputs.
        memory_factor: peak memory of the cells here over what they need.
    """

    tanh: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    reshape: Callable[[Any, Tuple[int, ...]], Any]
    split: Callable[..., Sequence[Any]]
    stack: Callable[[Sequence[Any]], Any]
    scan: Callable[..., Any]
    differentiation: Optional[Differentiation] = None
    memory_factor: float = 1.0


def build_layers(dialect: RecurrentDialect, problem: RecurrentProblem) -> Function:
    """Build the function from input, initial states, cells and weights to outputs, last states and cells."""
    num_weights = len(list_weight_shapes(problem))

    def run_all_layers(x: Any, states: Any, cells: Any, *weights: Any) -> Tuple[Any, ...]:
        last = []
        for number in range(problem.l):
            layer_weights = weights[number * num_weights : (number + 1) * num_weights]
            carried, x = _run_layer(dialect, problem, x, (states[number], cells[number]), layer_weights)
            last.append(carried)
        return x, dialect.stack([h for h, _ in last]), dialect.stack([c for _, c in last])

    return run_all_layers


def _run_layer(
    dialect: RecurrentDialect, problem: RecurrentProblem, x: Any, first: Tuple[Any, Any], weights: Sequence[Any]
) -> Tuple[Any, Any]:
    """Run one layer; return its last state and cell, and the outputs of all steps."""
    of_input, bias, of_state, *projection = weights
    # The input of all steps goes into one matrix product.
    rows = dialect.reshape(x, (problem.t * problem.mb, problem.slc))
    shares = dialect.reshape(rows @ of_input + bias, (problem.t, problem.mb, NUM_GATES * problem.dhc))

    def run_step(carried: Any, share: Any) -> Any:
        h, c = carried
        i, f, g, o = dialect.split(share + h @ of_state, NUM_GATES, axis=-1)
        c = dialect.sigmoid(f) * c + dialect.sigmoid(i) * dialect.tanh(g)
        h = dialect.sigmoid(o) * dialect.tanh(c)
        h = h @ projection[0] if projection else h
        return (h, c), h

    result: Tuple[Any, Any] = dialect.scan(run_step, first, shares)
    return result


def list_weight_shapes(problem: RecurrentProblem) -> Dict[str, Tuple[int, ...]]:
    """List the shapes of the weights of a layer, in the order of its arguments."""
    num_gates = NUM_GATES * problem.dhc
    shapes = {"of_input": (problem.slc, num_gates), "bias": (num_gates,), "of_state": (problem.sic, num_gates)}
    return {**shapes, "projection": (problem.dhc, problem.dic)} if problem.is_projected else shapes


def prepare_arrays_lstm_cell(
    arrays: Arrays, dialect: RecurrentDialect, params: TrialParameters, context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """Prepare the job; raise Infeasible with the reason if the framework lacks these cells."""
    require_primitive(arrays, LSTM_CELL, NOUN, params, context, dialect.memory_factor)
    arguments = LSTM_CELL.read_arguments(params.arguments)
    _require_cells(arrays.runtime, dialect, arguments)
    cells = ArraysCells(arrays, dialect, arguments, params, SEED_STRIDE * context.rank)
    extra_facts = {
        "problem": str(arguments.problem),
        "types": format_cell_types(params.dtype.value),
        "direction": arguments.direction,
    }
    return ArraysPrimitiveJob(arrays, NOUN, cells.build_operator(), cells.check, lambda: {**facts(), **extra_facts})


def _require_cells(runtime: str, dialect: RecurrentDialect, arguments: LstmArguments) -> None:
    problem = arguments.problem
    if problem.sic != problem.dic:
        raise Infeasible(
            f"sic{problem.sic} and dic{problem.dic}: {runtime} needs input and output states of equal width"
        )
    if dialect.differentiation is None and arguments.direction != "FWD_I":
        raise Infeasible(f"direction {arguments.direction}: {runtime} has no automatic differentiation; use FWD_I")


class ArraysCells:
    """LSTM layers with random input, states and weights, and random gradients for the backward pass."""

    def __init__(
        self, arrays: Arrays, dialect: RecurrentDialect, arguments: LstmArguments, params: TrialParameters, seed: int
    ) -> None:
        self._arrays, self._dialect, self._params, self._seed = arrays, dialect, params, seed
        self._arguments, problem = arguments, arguments.problem
        self._inputs: List[Any] = [
            self._draw_normal((problem.t, problem.mb, problem.slc)),
            self._draw_normal((problem.l, problem.mb, problem.sic)),
            self._draw_normal((problem.l, problem.mb, problem.dhc)),
        ]
        scale = 1.0 / math.sqrt(problem.sic + problem.slc)
        for _ in range(problem.l):
            drawn = [self._draw_normal(shape) for shape in list_weight_shapes(problem).values()]
            self._inputs.extend(arrays.scale(scale, each) for each in drawn)
        self._gradients: List[Any] = []

    def _draw_normal(self, shape: Tuple[int, ...]) -> Any:
        self._seed += 1
        return self._arrays.draw_normal(shape, str(self._params.dtype), self._seed)

    def build_operator(self) -> Callable[[], Sequence[Any]]:
        """Build the function that one step calls."""
        inputs, differentiation = self._inputs, self._dialect.differentiation
        function = build_layers(self._dialect, self._arguments.problem)
        if differentiation is None or self._arguments.direction == "FWD_I":
            compiled = self._arrays.compile(function)
            return lambda: compiled(*inputs)
        if self._arguments.direction == "FWD_D":
            recorded = differentiation.record(function)
            return lambda: recorded(*inputs)
        results, backward = differentiation.backward(function, inputs)
        self._gradients = [self._draw_normal(tuple(each.shape)) for each in results]
        return lambda: backward(self._gradients)

    def check(self, results: Sequence[Any]) -> Check:
        """Compare every result of the direction with a reference in float64."""
        if self._arguments.direction == "FWD_D":
            results, _ = results
        pairs = [(want, self._arrays.to_host(got)) for want, got in zip(self._compute_reference(), results)]
        problem = self._arguments.problem
        # Rounding errors accumulate over layers and steps.
        steps = math.sqrt(problem.l * problem.t)
        tolerance = steps * compute_tolerance(self._params, problem.sic + problem.slc)
        return Check(find_worst_difference(pairs), tolerance, "the same cells in float64")

    def _compute_reference(self) -> List[Any]:
        """Compute the expected results of the direction, in their order."""
        x, states, cells, *weights = (self._to_float64(each) for each in self._inputs)
        names = list(list_weight_shapes(self._arguments.problem))
        layers = []
        for start in range(0, len(weights), len(names)):
            layers.append(LayerWeights(**{n: w.T for n, w in zip(names, weights[start:])}))
        outputs = run_forward(layers, x, states, cells)
        if self._arguments.direction != "BWD_DW":
            return [outputs.sequence, outputs.states, outputs.cells]
        given, grads = run_backward(layers, outputs, *(self._to_float64(each) for each in self._gradients))
        return [given[name] for name in INITIAL_NAMES] + [getattr(grad, n).T for grad in grads for n in names]

    def _to_float64(self, array: Any) -> Any:
        return self._arrays.to_host(array).astype(np.float64)
