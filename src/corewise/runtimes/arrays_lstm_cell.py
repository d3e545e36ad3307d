"""LSTM cells on any framework's arrays, written once: forward, and backward by its own differentiation.

Measured side: standard library and numpy only, Python 3.9. Weights lie as users of these frameworks have
them, input × gates, with one bias; gates stand in the order input, forget, cell, output.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.arrays_primitive import ArraysPrimitiveJob, Facts, require_primitive, tolerance_of
from corewise.runtimes.base import Check, Infeasible, RankContext
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.lstm_cell import LSTM_CELL, AskedCell, types_of_cells
from corewise.workloads.primitives.lstm_reference import (
    LayerWeights,
    run_backward,
    run_forward,
    worst_difference,
)
from corewise.workloads.primitives.recurrent_problem import NUM_GATES, RecurrentProblem

NOUN = "LSTM cell"
SEEDS_APART = 1000  # between ranks: further than the arrays of one
FIRST = ("x", "states", "cells")  # the arrays before the weights
Function = Callable[..., Tuple[Any, ...]]
Backward = Callable[[Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class Differentiation:
    """How a framework finds gradients."""

    recorded: Callable[[Function], Function]  # gives the results, and what the way back needs
    backward: Callable[[Function, Sequence[Any]], Tuple[Sequence[Any], Backward]]  # the results, the way back


@dataclasses.dataclass(frozen=True)
class RecurrentDialect:
    """A framework's words for what cells are made of."""

    tanh: Callable[[Any], Any]
    sigmoid: Callable[[Any], Any]
    reshape: Callable[[Any, Tuple[int, ...]], Any]
    split: Callable[..., Sequence[Any]]
    stack: Callable[[Sequence[Any]], Any]
    scan: Callable[..., Any]  # of step, what it carries and a sequence: what is carried last, and its outputs
    differentiation: Optional[Differentiation] = None
    memory_factor: float = 1.0  # what cells take here over what they need


def run_layers(dialect: RecurrentDialect, problem: RecurrentProblem) -> Function:
    """What makes of input, first states and cells and weights the outputs, last states and last cells."""
    num_weights = len(weights_of(problem))

    def function(x: Any, states: Any, cells: Any, *weights: Any) -> Tuple[Any, ...]:
        last = []
        for number in range(problem.l):
            own = weights[number * num_weights : (number + 1) * num_weights]
            carried, x = _run_layer(dialect, problem, x, (states[number], cells[number]), own)
            last.append(carried)
        return x, dialect.stack([h for h, _ in last]), dialect.stack([c for _, c in last])

    return function


def _run_layer(
    dialect: RecurrentDialect,
    problem: RecurrentProblem,
    x: Any,
    first: Tuple[Any, Any],
    weights: Sequence[Any],
) -> Tuple[Any, Any]:
    """The last state and cell, and the outputs of all steps."""
    of_input, bias, of_state, *projection = weights
    rows = dialect.reshape(x, (problem.t * problem.mb, problem.slc))  # all steps' input in one product
    shares = dialect.reshape(rows @ of_input + bias, (problem.t, problem.mb, NUM_GATES * problem.dhc))

    def step(carried: Any, share: Any) -> Any:
        h, c = carried
        i, f, g, o = dialect.split(share + h @ of_state, NUM_GATES, axis=-1)
        c = dialect.sigmoid(f) * c + dialect.sigmoid(i) * dialect.tanh(g)
        h = dialect.sigmoid(o) * dialect.tanh(c)
        h = h @ projection[0] if projection else h
        return (h, c), h

    made: Tuple[Any, Any] = dialect.scan(step, first, shares)
    return made


def weights_of(problem: RecurrentProblem) -> Dict[str, Tuple[int, ...]]:
    """The shapes of a layer's weights, in the order that the layers take them."""
    num_gates = NUM_GATES * problem.dhc
    shapes = {
        "of_input": (problem.slc, num_gates),
        "bias": (num_gates,),
        "of_state": (problem.sic, num_gates),
    }
    return {**shapes, "projection": (problem.dhc, problem.dic)} if problem.is_projected else shapes


def prepare_arrays_lstm_cell(
    arrays: Arrays, dialect: RecurrentDialect, params: Mapping[str, Any], context: RankContext, facts: Facts
) -> ArraysPrimitiveJob:
    """The job; raises Infeasible with the reason where the framework has no such cells."""
    require_primitive(arrays, LSTM_CELL, NOUN, params, context, dialect.memory_factor)
    asked = LSTM_CELL.asked(workload_args(params))
    _require_cells(arrays.runtime, dialect, asked)
    cells = ArraysCells(arrays, dialect, asked, params, SEEDS_APART * context.rank)
    told = {
        "problem": str(asked.problem),
        "types": types_of_cells(str(params["dtype"])),
        "direction": asked.direction,
    }
    return ArraysPrimitiveJob(arrays, NOUN, cells.operate(), cells.check, lambda: {**facts(), **told})


def _require_cells(runtime: str, dialect: RecurrentDialect, asked: AskedCell) -> None:
    problem = asked.problem
    if problem.sic != problem.dic:
        raise Infeasible(
            f"sic{problem.sic} and dic{problem.dic}: {runtime}'s states go out as wide as they come in"
        )
    if dialect.differentiation is None and asked.direction != "FWD_I":
        raise Infeasible(
            f"direction {asked.direction}: {runtime} has no differentiation, so nothing to record for it; "
            "FWD_I exists"
        )


class ArraysCells:
    """The layers with random input, states and weights, and random gradients on the way back."""

    def __init__(
        self,
        arrays: Arrays,
        dialect: RecurrentDialect,
        asked: AskedCell,
        params: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._arrays, self._dialect, self._params, self._seed = arrays, dialect, params, seed
        self._asked, problem = asked, asked.problem
        self._inputs: List[Any] = [
            self._normal((problem.t, problem.mb, problem.slc)),
            self._normal((problem.l, problem.mb, problem.sic)),
            self._normal((problem.l, problem.mb, problem.dhc)),
        ]
        scale = 1.0 / math.sqrt(problem.sic + problem.slc)
        for _ in range(problem.l):
            drawn = [self._normal(shape) for shape in weights_of(problem).values()]
            self._inputs.extend(arrays.scale(scale, each) for each in drawn)
        self._gradients: List[Any] = []

    def _normal(self, shape: Tuple[int, ...]) -> Any:
        self._seed += 1
        return self._arrays.normal(shape, str(self._params["dtype"]), self._seed)

    def operate(self) -> Callable[[], Sequence[Any]]:
        """What one step calls."""
        inputs, way_back = self._inputs, self._dialect.differentiation
        function = run_layers(self._dialect, self._asked.problem)
        if way_back is None or self._asked.direction == "FWD_I":
            compiled = self._arrays.compiled(function)
            return lambda: compiled(*inputs)
        if self._asked.direction == "FWD_D":
            recorded = way_back.recorded(function)
            return lambda: recorded(*inputs)
        results, backward = way_back.backward(function, inputs)
        self._gradients = [self._normal(tuple(each.shape)) for each in results]
        return lambda: backward(self._gradients)

    def check(self, results: Sequence[Any]) -> Check:
        """Every result of the direction against the same written out in float64."""
        if self._asked.direction == "FWD_D":
            results, _ = results
        wanted = self._wanted()
        pairs = [(w, self._arrays.to_host(r)) for w, r in zip(wanted, results)]
        problem = self._asked.problem
        steps = math.sqrt(problem.l * problem.t)  # rounding adds up from step to step
        tolerance = steps * tolerance_of(self._params, problem.sic + problem.slc)
        return Check(worst_difference(pairs), tolerance, "the same cells written out in float64")

    def _wanted(self) -> List[Any]:
        """What the direction's results should be, in their order."""
        x, states, cells, *weights = (self._double(each) for each in self._inputs)
        names = list(weights_of(self._asked.problem))
        layers = []
        for start in range(0, len(weights), len(names)):
            layers.append(LayerWeights(**{n: w.T for n, w in zip(names, weights[start:])}))
        outputs = run_forward(layers, x, states, cells)
        if self._asked.direction != "BWD_DW":
            return [outputs.sequence, outputs.states, outputs.cells]
        given, grads = run_backward(layers, outputs, *(self._double(each) for each in self._gradients))
        return [given[name] for name in FIRST] + [getattr(grad, n).T for grad in grads for n in names]

    def _double(self, array: Any) -> Any:
        return self._arrays.to_host(array).astype(np.float64)
