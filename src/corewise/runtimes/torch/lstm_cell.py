"""LSTM cells on torch: forward, and backward alone.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from corewise.runtimes.base import Check, Infeasible, RankContext
from corewise.runtimes.params import require_defaults
from corewise.runtimes.torch.bfloat16 import LACKING, lacking_cell, onednn_has_bfloat16
from corewise.runtimes.torch.convolution import as_numpy
from corewise.runtimes.torch.primitive_job import (
    PrimitiveJob,
    benchdnn_facts,
    require_operator,
    require_room,
    roundoffs,
)
from corewise.runtimes.torch.settings import Settings, read_settings
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.benchdnn import benchdnn_words
from corewise.workloads.primitives.lstm_cell import LSTM_CELL, AskedCell, types_of_cells
from corewise.workloads.primitives.lstm_reference import (
    LayerWeights,
    run_backward,
    run_forward,
    worst_difference,
)
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.recurrent_problem import RecurrentProblem

BENCHDNN_TIMES = 10
LSTM_MODE = 2  # as oneDNN's operator in torch numbers them


def prepare_lstm_cell(params: Mapping[str, Any], context: RankContext) -> PrimitiveJob:
    """The job; raises Infeasible with the reason where torch has no such cells."""
    require_operator(params, LSTM_CELL.name)
    require_defaults(params, ("memory_format",), "sequences have no layout to choose; see args.reorders")
    refusal = LSTM_CELL.refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    asked = LSTM_CELL.asked(workload_args(params))
    problem, settings = asked.problem, read_settings(params, context)
    if problem.sic != problem.dic:
        raise Infeasible(
            f"sic{problem.sic} and dic{problem.dic}: torch's states go out as wide as they come in"
        )
    work = LSTM_CELL.work(str(params["mode"]), workload_args(params), settings.dtype)
    require_room(LSTM_CELL, params, settings, context)
    benchdnn = None
    if asked.benchdnn:
        options = {"alg": "VANILLA_LSTM", "prop": asked.direction, "cfg": types_of_cells(settings.dtype)}
        if problem.is_projected:
            options["with-projection"] = "true"
        words = benchdnn_words(asked.benchdnn, "rnn", str(problem), options, num_times=BENCHDNN_TIMES)
        benchdnn = benchdnn_facts([words], int(params["threads"]))
    return PrimitiveJob(
        settings,
        lambda seed: _made(asked, settings, seed),
        context.rank,
        {"problem": str(problem), "types": types_of_cells(settings.dtype), "direction": asked.direction},
        benchdnn,
        work.bytes_per_sample,
        recordable=asked.direction == "FWD_I",  # what autograd keeps belongs to other streams than a graph's
    )


def _made(
    asked: AskedCell, settings: Settings, seed: int
) -> Tuple[Callable[[], Any], Callable[[Any], Check]]:
    cells = Cells(asked, settings, seed)
    try:
        operate = cells.operate()
        operate()
    except RuntimeError as problem:
        raise lacking_cell(problem, settings) or problem from None  # oneDNN's words say nothing more
    return operate, cells.check


class Cells:
    """The layers with random input, states and weights, and random gradients on the way back."""

    def __init__(self, asked: AskedCell, settings: Settings, seed: int) -> None:
        self._asked, self._settings = asked, settings
        problem, self._generator = asked.problem, torch.Generator().manual_seed(seed)
        self._dtype = getattr(torch, settings.dtype)
        self._layers = self._made(problem)
        self._x = self._normal(problem.t, problem.mb, problem.slc)
        self._states = (
            self._normal(problem.l, problem.mb, problem.dic),
            self._normal(problem.l, problem.mb, problem.dhc),
        )
        self._gradients: Tuple[Tensor, ...] = ()

    def _normal(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator, dtype=self._settings.tensor_dtype)
        return drawn.to(self._settings.device, self._dtype)

    def _made(self, problem: RecurrentProblem) -> nn.LSTM:
        proj_size = problem.dic if problem.is_projected else 0
        layers = nn.LSTM(problem.slc, problem.dhc, problem.l, proj_size=proj_size)
        with torch.no_grad():
            for parameter in layers.parameters():
                drawn = torch.randn(parameter.shape, generator=self._generator, dtype=torch.float64)
                parameter.copy_(drawn / math.sqrt(problem.sic + problem.slc))
        return layers.to(self._settings.device, self._dtype)

    def operate(self) -> Callable[[], Any]:
        """What one step calls."""
        layers, x, states = self._layers, self._x, self._states
        if self._asked.direction == "FWD_I":  # the mode decides which kernel oneDNN takes
            excluded = self._asked.reorders == "excluded"
            return torch.no_grad()(self._prepared() if excluded else lambda: layers(x, states))
        if self._asked.direction == "FWD_D":
            return lambda: layers(x, states)
        inputs = [t.requires_grad_() for t in (x, *states)] + list(layers.parameters())
        sequence, (h, c) = layers(x, states)
        outputs = (sequence, h, c)
        self._gradients = tuple(self._normal(*t.shape) for t in outputs)
        return lambda: torch.autograd.grad(outputs, inputs, self._gradients, retain_graph=True)

    def _prepared(self) -> Callable[[], Any]:
        """oneDNN's operator on weights that it has laid out for itself."""
        problem, operator = self._asked.problem, getattr(torch.ops.aten, "mkldnn_rnn_layer", None)
        reorder = getattr(torch.ops.mkldnn, "_reorder_mkldnn_rnn_layer_weight", None)
        usable = self._settings.device.type == "cpu" and self._settings.dtype in ("float32", "bfloat16")
        if operator is None or reorder is None or not usable or not torch.backends.mkldnn.enabled:
            raise Infeasible(
                "reorders excluded: only oneDNN on a CPU takes prepared weights, in float32 or bfloat16"
            )
        if self._settings.dtype == "bfloat16" and not onednn_has_bfloat16():
            raise Infeasible(f"reorders excluded in bfloat16: {LACKING}; use float32, or reorders included")
        first, second, third, fourth = (p.detach() for p in self._layers.parameters())
        packed = reorder(first, second, problem.dhc, False, True, False, list(self._x.shape))
        rest: Tuple[Any, ...] = (False, [], LSTM_MODE, problem.dhc, 1, True, False, False, False)
        x, (h, c) = self._x, self._states
        return lambda: operator.default(x, packed[0], packed[1], third, fourth, h[0], c[0], *rest)

    def check(self, results: Any) -> Check:
        """Every result of the direction against the same written out in float64."""
        layers, x, h, c = self._reference_inputs()
        outputs = run_forward(layers, x, h, c)
        if self._asked.direction == "BWD_DW":
            pairs = self._backward_pairs(results, layers, outputs)
        elif self._asked.reorders == "excluded":
            wanted = (outputs.sequence, outputs.states[0], outputs.cells[0])
            pairs = [(w, as_numpy(r).reshape(w.shape)) for w, r in zip(wanted, results)]
        else:
            sequence, (last_h, last_c) = results
            wanted = (outputs.sequence, outputs.states, outputs.cells)
            pairs = [(w, as_numpy(r)) for w, r in zip(wanted, (sequence, last_h, last_c))]
        problem = self._asked.problem
        tolerance = product_tolerance(problem.sic + problem.slc, **roundoffs(self._settings, self._dtype))
        steps = math.sqrt(problem.l * problem.t)  # rounding adds up from step to step
        return Check(worst_difference(pairs), steps * tolerance, "the same cells written out in float64")

    def _reference_inputs(self) -> Tuple[List[LayerWeights], Any, Any, Any]:
        named = {name: _double(p) for name, p in self._layers.named_parameters()}
        layers = [
            LayerWeights(
                named[f"weight_ih_l{n}"],
                named[f"weight_hh_l{n}"],
                named[f"bias_ih_l{n}"] + named[f"bias_hh_l{n}"],
                named.get(f"weight_hr_l{n}"),
            )
            for n in range(self._asked.problem.l)
        ]
        return layers, _double(self._x), _double(self._states[0]), _double(self._states[1])

    def _backward_pairs(
        self, results: Any, layers: List[LayerWeights], outputs: Any
    ) -> List[Tuple[Any, Any]]:
        given, grads = run_backward(layers, outputs, *(_double(g) for g in self._gradients))
        wanted: Dict[str, Any] = {}
        for number, grad in enumerate(grads):
            wanted[f"weight_ih_l{number}"], wanted[f"weight_hh_l{number}"] = grad.of_input, grad.of_state
            wanted[f"bias_ih_l{number}"] = wanted[f"bias_hh_l{number}"] = grad.bias
            wanted[f"weight_hr_l{number}"] = grad.projection
        names = [name for name, _ in self._layers.named_parameters()]
        ordered = [given["x"], given["states"], given["cells"], *(wanted[name] for name in names)]
        return [(w, as_numpy(r)) for w, r in zip(ordered, results)]


def _double(tensor: Tensor) -> Any:
    return as_numpy(tensor).astype(np.float64)
