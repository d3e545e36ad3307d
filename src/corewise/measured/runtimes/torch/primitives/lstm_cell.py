"""The LSTM primitive on torch: the forward pass, or the backward pass without it.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Check, Infeasible, RankContext
from corewise.measured.runtimes.torch.bfloat16 import (
    MISSING_INSTRUCTIONS,
    explain_missing_cell,
    supports_onednn_bfloat16,
)
from corewise.measured.runtimes.torch.primitives.convolution import to_numpy
from corewise.measured.runtimes.torch.primitives.primitive_job import (
    PrimitiveJob,
    build_benchdnn_query,
    compute_roundoffs,
    require_operator,
    require_room,
)
from corewise.measured.runtimes.torch.settings import Settings, read_settings
from corewise.measured.runtimes.trial_params import require_defaults
from corewise.measured.workloads.primitives.benchdnn import build_benchdnn_command
from corewise.measured.workloads.primitives.lstm_cell import LSTM_CELL, LstmArguments, format_cell_types
from corewise.measured.workloads.primitives.lstm_problem import RecurrentProblem
from corewise.measured.workloads.primitives.lstm_reference import (
    LayerWeights,
    find_worst_difference,
    run_backward,
    run_forward,
)
from corewise.measured.workloads.primitives.matmul import compute_product_tolerance

BENCHDNN_TIMES = 10
# torch's number for LSTMs among the modes of its oneDNN operator.
LSTM_MODE = 2


def prepare_lstm_cell(params: TrialParameters, context: RankContext) -> PrimitiveJob:
    """Prepare the job; raise Infeasible with the reason if torch has no such cells."""
    require_operator(params, LSTM_CELL.name)
    require_defaults(params, ("memory_format",), "sequences have only one layout; see args.reorders")
    refusal = LSTM_CELL.explain_refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    arguments = LSTM_CELL.read_arguments(params.arguments)
    problem, settings = arguments.problem, read_settings(params, context)
    if problem.sic != problem.dic:
        raise Infeasible(
            f"sic{problem.sic} and dic{problem.dic}: in torch, input and output states have the same width"
        )
    work = LSTM_CELL.count_work(params.mode.value, params.arguments, settings.dtype)
    require_room(LSTM_CELL, params, settings, context)
    benchdnn = None
    if arguments.benchdnn:
        options = {"alg": "VANILLA_LSTM", "prop": arguments.direction, "cfg": format_cell_types(settings.dtype)}
        if problem.is_projected:
            options["with-projection"] = "true"
        command = build_benchdnn_command(arguments.benchdnn, "rnn", str(problem), options, num_times=BENCHDNN_TIMES)
        benchdnn = build_benchdnn_query([command], params.threads)
    return PrimitiveJob(
        settings,
        lambda seed: _build_cells(arguments, settings, seed),
        context.rank,
        {"problem": str(problem), "types": format_cell_types(settings.dtype), "direction": arguments.direction},
        benchdnn,
        work.bytes_per_sample,
        # Tensors that autograd saves belong to other streams than those of a CUDA graph.
        recordable=arguments.direction == "FWD_I",
    )


def _build_cells(
    arguments: LstmArguments, settings: Settings, seed: int
) -> Tuple[Callable[[], Any], Callable[[Any], Check]]:
    cells = LstmCells(arguments, settings, seed)
    try:
        operate = cells.build_step()
        operate()
    except RuntimeError as problem:
        raise explain_missing_cell(problem, settings) or problem from None
    return operate, cells.check


class LstmCells:
    """LSTM layers with random input, states and weights, and random output gradients."""

    def __init__(self, arguments: LstmArguments, settings: Settings, seed: int) -> None:
        self._arguments, self._settings = arguments, settings
        problem, self._generator = arguments.problem, torch.Generator().manual_seed(seed)
        self._dtype = getattr(torch, settings.dtype)
        self._layers = self._build_layers(problem)
        self._x = self._draw_normal(problem.t, problem.mb, problem.slc)
        self._states = (
            self._draw_normal(problem.l, problem.mb, problem.dic),
            self._draw_normal(problem.l, problem.mb, problem.dhc),
        )
        self._gradients: Tuple[Tensor, ...] = ()

    def _draw_normal(self, *shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator, dtype=self._settings.tensor_dtype)
        return drawn.to(self._settings.device, self._dtype)

    def _build_layers(self, problem: RecurrentProblem) -> nn.LSTM:
        proj_size = problem.dic if problem.is_projected else 0
        layers = nn.LSTM(problem.slc, problem.dhc, problem.l, proj_size=proj_size)
        with torch.no_grad():
            for parameter in layers.parameters():
                drawn = torch.randn(parameter.shape, generator=self._generator, dtype=torch.float64)
                parameter.copy_(drawn / math.sqrt(problem.sic + problem.slc))
        return layers.to(self._settings.device, self._dtype)

    def build_step(self) -> Callable[[], Any]:
        """Build the function that one step calls."""
        layers, x, states = self._layers, self._x, self._states
        # The gradient mode decides which kernel oneDNN chooses.
        if self._arguments.direction == "FWD_I":
            excluded = self._arguments.reorders == "excluded"
            return torch.no_grad()(self._build_prepared_step() if excluded else lambda: layers(x, states))
        if self._arguments.direction == "FWD_D":
            return lambda: layers(x, states)
        inputs = [t.requires_grad_() for t in (x, *states)] + list(layers.parameters())
        sequence, (h, c) = layers(x, states)
        outputs = (sequence, h, c)
        self._gradients = tuple(self._draw_normal(*t.shape) for t in outputs)
        return lambda: torch.autograd.grad(outputs, inputs, self._gradients, retain_graph=True)

    def _build_prepared_step(self) -> Callable[[], Any]:
        """Build a call of oneDNN's operator with weights in the layout that it prefers."""
        problem, operator = self._arguments.problem, getattr(torch.ops.aten, "mkldnn_rnn_layer", None)
        reorder = getattr(torch.ops.mkldnn, "_reorder_mkldnn_rnn_layer_weight", None)
        usable = self._settings.device.type == "cpu" and self._settings.dtype in ("float32", "bfloat16")
        if operator is None or reorder is None or not usable or not torch.backends.mkldnn.enabled:
            raise Infeasible("reorders excluded: only oneDNN on a CPU accepts prepared weights, in float32 or bfloat16")
        if self._settings.dtype == "bfloat16" and not supports_onednn_bfloat16():
            raise Infeasible(
                f"reorders excluded in bfloat16: {MISSING_INSTRUCTIONS}; use float32, or reorders included"
            )
        first, second, third, fourth = (p.detach() for p in self._layers.parameters())
        packed = reorder(first, second, problem.dhc, False, True, False, list(self._x.shape))
        rest: Tuple[Any, ...] = (False, [], LSTM_MODE, problem.dhc, 1, True, False, False, False)
        x, (h, c) = self._x, self._states
        return lambda: operator.default(x, packed[0], packed[1], third, fourth, h[0], c[0], *rest)

    def check(self, results: Any) -> Check:
        """Check every result of the direction against a float64 reference."""
        layers, x, h, c = self._read_reference_inputs()
        outputs = run_forward(layers, x, h, c)
        if self._arguments.direction == "BWD_DW":
            pairs = self._build_backward_pairs(results, layers, outputs)
        elif self._arguments.reorders == "excluded":
            wanted = (outputs.sequence, outputs.states[0], outputs.cells[0])
            pairs = [(w, to_numpy(r).reshape(w.shape)) for w, r in zip(wanted, results)]
        else:
            sequence, (last_h, last_c) = results
            wanted = (outputs.sequence, outputs.states, outputs.cells)
            pairs = [(w, to_numpy(r)) for w, r in zip(wanted, (sequence, last_h, last_c))]
        problem = self._arguments.problem
        tolerance = compute_product_tolerance(
            problem.sic + problem.slc, **compute_roundoffs(self._settings, self._dtype)
        )
        # Rounding errors accumulate over layers and steps.
        steps = math.sqrt(problem.l * problem.t)
        return Check(find_worst_difference(pairs), steps * tolerance, "the same cells written out in float64")

    def _read_reference_inputs(self) -> Tuple[List[LayerWeights], Any, Any, Any]:
        named = {name: _to_float64(p) for name, p in self._layers.named_parameters()}
        layers = [
            LayerWeights(
                named[f"weight_ih_l{n}"],
                named[f"weight_hh_l{n}"],
                named[f"bias_ih_l{n}"] + named[f"bias_hh_l{n}"],
                named.get(f"weight_hr_l{n}"),
            )
            for n in range(self._arguments.problem.l)
        ]
        return layers, _to_float64(self._x), _to_float64(self._states[0]), _to_float64(self._states[1])

    def _build_backward_pairs(self, results: Any, layers: List[LayerWeights], outputs: Any) -> List[Tuple[Any, Any]]:
        given, grads = run_backward(layers, outputs, *(_to_float64(g) for g in self._gradients))
        wanted: Dict[str, Any] = {}
        for number, grad in enumerate(grads):
            wanted[f"weight_ih_l{number}"], wanted[f"weight_hh_l{number}"] = grad.of_input, grad.of_state
            wanted[f"bias_ih_l{number}"] = wanted[f"bias_hh_l{number}"] = grad.bias
            wanted[f"weight_hr_l{number}"] = grad.projection
        names = [name for name, _ in self._layers.named_parameters()]
        ordered = [given["x"], given["states"], given["cells"], *(wanted[name] for name in names)]
        return [(w, to_numpy(r)) for w, r in zip(ordered, results)]


def _to_float64(tensor: Tensor) -> Any:
    return to_numpy(tensor).astype(np.float64)
