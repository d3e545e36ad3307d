"""LSTM cells of a problem in benchdnn's notation, forward and backward.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Tuple

from corewise.workloads.base import Traits, Work, workload_args
from corewise.workloads.primitives.arguments import chosen, known_args
from corewise.workloads.primitives.convolution import types_of
from corewise.workloads.primitives.memory_demand import Demand
from corewise.workloads.primitives.recurrent_problem import NUM_GATES, RecurrentProblem, parse_recurrent
from corewise.workloads.primitives.workload import (
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
class AskedCell:
    """What a trial's arguments ask for."""

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
        runtimes = ("numpy", "torch", "jax", "tensorflow")
        return {name: f"corewise.runtimes.{name}.lstm_cell:prepare_lstm_cell" for name in runtimes}

    @property
    def parameters(self) -> Mapping[str, Any]:
        return PARAMETERS

    def dtypes(self, args: Mapping[str, Any]) -> Tuple[str, ...]:
        return FLOAT_DTYPES

    def traits(self, args: Mapping[str, Any]) -> Traits:
        return Traits(takes_images=False, has_batch_norm=False, has_dropout=False)

    def asked(self, args: Mapping[str, Any]) -> AskedCell:
        """The arguments, checked; ValueError says what is wrong."""
        full = known_args(self.name, args, PARAMETERS)
        return AskedCell(
            problem=parse_recurrent(str(full["problem"]).strip()),
            direction=chosen(self.name, "direction", full["direction"], DIRECTIONS),
            reorders=chosen(self.name, "reorders", full["reorders"], REORDERS),
            benchdnn=str(full["benchdnn"] or ""),
        )

    def work(self, mode: str, args: Mapping[str, Any], dtype: Optional[str] = None) -> Work:
        """The products of matrices, twice as many backward; every tensor once, backward its gradient too."""
        asked = self.asked(args)
        times = 2 if asked.direction == "BWD_DW" else 1
        num_bytes = asked.problem.num_moved * DTYPE_BYTES[dtype or "float32"]
        return Work(times * asked.problem.forward_flops, float(times * num_bytes), 0)

    def demand(self, args: Mapping[str, Any], dtype: str, device: str) -> Demand:
        """Every tensor twice, backward its gradient too, and on the host the check's in float64."""
        asked = self.asked(args)
        times = 2 if asked.direction == "BWD_DW" else 1
        width = times * (2 * DTYPE_BYTES[dtype] + (DTYPE_BYTES["float64"] if device == "cpu" else 0))

        def parts(mb: int) -> Mapping[str, int]:
            return {name: width * num for name, num in elements_of(asked.problem, mb).items()}

        sizes = {
            "weights": "sic, slc or dhc",
            "sequences": "t, slc or dic",
            "states": "l, sic or dhc",
            "gates": "t, l or dhc",
        }
        return Demand(asked.problem.mb, "write into the problem mb", "minibatch", parts, sizes)

    def refusal(self, params: Mapping[str, Any]) -> Optional[str]:
        """Why the point does not exist in any framework, or None."""
        args = workload_args(params)
        asked, dtype = self.asked(args), str(params["dtype"])
        if int(params["batch"]) != 1:
            return f"batch {params['batch']}: the problem has its own minibatch (mb); leave batch out, or 1"
        if dtype not in self.dtypes(args):
            return f"lstm_cell has no dtype {dtype}; it has {', '.join(self.dtypes(args))}"
        if asked.reorders == "excluded" and asked.direction != "FWD_I":
            return (
                f"reorders excluded in direction {asked.direction}: weights are prepared for inference only"
            )
        if asked.reorders == "excluded" and (asked.problem.l > 1 or asked.problem.is_projected):
            return "reorders excluded: weights are prepared for one layer without projection"
        return None


def types_of_cells(dtype: str) -> str:
    """The number formats in the words of benchdnn's rnn driver."""
    return "bf16" if dtype == "bfloat16" else types_of(dtype, "u8")


def elements_of(problem: RecurrentProblem, mb: int) -> Mapping[str, int]:
    """What a pass holds for a minibatch: gates are kept for every step."""
    own = dataclasses.replace(problem, mb=mb)
    without = dataclasses.replace(problem, mb=0)
    sequences = own.t * mb * (own.slc + own.dic)
    return {
        "weights": without.num_moved,
        "sequences": sequences,
        "states": own.num_moved - without.num_moved - sequences,
        "gates": own.l * own.t * mb * NUM_GATES * own.dhc,
    }


LSTM_CELL = LstmCell()
