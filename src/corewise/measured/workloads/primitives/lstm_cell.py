"""The LSTM cell workload: a problem in benchdnn's notation, forward and backward.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Tuple

from corewise.measured.parameters import TrialParameters
from corewise.measured.workloads.base import Traits, Work
from corewise.measured.workloads.primitives.convolution import format_benchdnn_types
from corewise.measured.workloads.primitives.lstm_problem import NUM_GATES, RecurrentProblem, parse_recurrent
from corewise.measured.workloads.primitives.memory_demand import MemoryDemand
from corewise.measured.workloads.primitives.primitive_arguments import fill_defaults, require_choice
from corewise.measured.workloads.primitives.primitive_workload import (
    DTYPE_BYTES,
    FLOAT_DTYPES,
    REORDERS,
    PrimitiveWorkload,
)

DIRECTIONS = ("FWD_I", "FWD_D", "BWD_DW")
PARAMETERS: Mapping[str, Any] = {
    "problem": "l1t16mb16sic256",
    "direction": "FWD_I",
    "reorders": "included",
    "benchdnn": "",
}


@dataclasses.dataclass(frozen=True)
class LstmArguments:
    """The checked arguments of a trial."""

    problem: RecurrentProblem
    direction: str
    reorders: str
    benchdnn: str


@dataclasses.dataclass(frozen=True)
class LstmCell(PrimitiveWorkload):
    """Layers of LSTM cells; one sample is one execution of the whole problem."""

    name: str = "lstm_cell"
    summary: str = "LSTM cells in benchdnn's notation (args.problem, args.direction)"

    @property
    def builders(self) -> Mapping[str, str]:
        return {
            "numpy": "corewise.measured.runtimes.numpy.primitives.lstm_cell:prepare_lstm_cell",
            "torch": "corewise.measured.runtimes.torch.primitives.lstm_cell:prepare_lstm_cell",
            "jax": "corewise.measured.runtimes.jax.primitives.lstm_cell:prepare_lstm_cell",
            "tensorflow": "corewise.measured.runtimes.tensorflow.primitives.lstm_cell:prepare_lstm_cell",
        }

    @property
    def parameters(self) -> Mapping[str, Any]:
        return PARAMETERS

    def list_dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return FLOAT_DTYPES

    def describe_traits(self, args: Mapping[str, Any]) -> Traits:
        return Traits(takes_images=False, has_batch_norm=False, has_dropout=False)

    def read_arguments(self, args: Mapping[str, Any]) -> LstmArguments:
        """Return the checked arguments; raise ValueError for an invalid one."""
        full = fill_defaults(self.name, args, PARAMETERS)
        return LstmArguments(
            problem=parse_recurrent(str(full["problem"]).strip()),
            direction=require_choice(self.name, "direction", full["direction"], DIRECTIONS),
            reorders=require_choice(self.name, "reorders", full["reorders"], REORDERS),
            benchdnn=str(full["benchdnn"] or ""),
        )

    def count_work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """Count matrix products and tensors moved once; the backward pass doubles both."""
        asked = self.read_arguments(args)
        times = 2 if asked.direction == "BWD_DW" else 1
        num_bytes = asked.problem.num_moved * DTYPE_BYTES[dtype or "float32"]
        return Work(times * asked.problem.forward_flops, float(times * num_bytes), 0)

    def build_demand(self, args: Mapping[str, Any], dtype: str, device: str) -> MemoryDemand:
        """Count every tensor twice, gradients, and on the host float64 copies for the check."""
        asked = self.read_arguments(args)
        times = 2 if asked.direction == "BWD_DW" else 1
        width = times * (2 * DTYPE_BYTES[dtype] + (DTYPE_BYTES["float64"] if device == "cpu" else 0))

        def count_parts(mb: int) -> Mapping[str, int]:
            return {name: width * num for name, num in count_elements(asked.problem, mb).items()}

        sizes = {
            "weights": "sic, slc or dhc",
            "sequences": "t, slc or dic",
            "states": "l, sic or dhc",
            "gates": "t, l or dhc",
        }
        return MemoryDemand(asked.problem.mb, "write into the problem mb", "minibatch", count_parts, sizes)

    def explain_refusal(self, params: TrialParameters) -> Optional[str]:
        """Return why no framework can run this point, or None."""
        args = params.arguments
        asked, dtype = self.read_arguments(args), params.dtype.value
        if params.batch != 1:
            return f"batch {params.batch}: the problem defines the minibatch (mb); leave batch out"
        if dtype not in self.list_dtypes(args):
            return f"lstm_cell has no dtype {dtype}; it has {', '.join(self.list_dtypes(args))}"
        if asked.reorders == "excluded" and asked.direction != "FWD_I":
            return f"reorders excluded in direction {asked.direction}: weights are prepared for inference only"
        if asked.reorders == "excluded" and (asked.problem.l > 1 or asked.problem.is_projected):
            return "reorders excluded: weights are prepared for one layer without projection"
        return None


def format_cell_types(dtype: str) -> str:
    """Return the number formats in the notation of benchdnn's rnn driver."""
    return "bf16" if dtype == "bfloat16" else format_benchdnn_types(dtype, "u8")


def count_elements(problem: RecurrentProblem, mb: int) -> Mapping[str, int]:
    """Count the elements that a pass holds for a minibatch; gates are stored for every step."""
    resized = dataclasses.replace(problem, mb=mb)
    without = dataclasses.replace(problem, mb=0)
    sequences = resized.t * mb * (resized.slc + resized.dic)
    return {
        "weights": without.num_moved,
        "sequences": sequences,
        "states": resized.num_moved - without.num_moved - sequences,
        "gates": resized.l * resized.t * mb * NUM_GATES * resized.dhc,
    }


LSTM_CELL = LstmCell()
