"""One convolution on any framework's arrays, as its users lay them out: no reorders to choose.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from corewise.runtimes.arrays import Arrays
from corewise.runtimes.arrays_matmul import TF32_ROUNDOFF, UNIT_ROUNDOFF
from corewise.runtimes.base import Check, Infeasible, RankContext
from corewise.runtimes.params import require_defaults
from corewise.runtimes.room import host_share_bytes, no_room
from corewise.workloads.base import workload_args
from corewise.workloads.primitives.convolution import (
    CONVOLUTION,
    WITH_BIAS,
    Asked,
    is_forward,
    types_of,
)
from corewise.workloads.primitives.matmul import product_tolerance
from corewise.workloads.primitives.sampled_sums import (
    REFERENCE,
    num_terms,
    results_of,
    worst_error,
)

Facts = Callable[[], Mapping[str, Any]]
Operator = Callable[..., Sequence[Any]]  # takes the arrays of `inputs_of`, returns those of `results_of`


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How a framework lays images out, and its operator for what is asked."""

    channels_last: bool  # N…C and …IO; otherwise NC… and OI…
    operator: Callable[[Asked], Operator]

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


class ConvolutionJob:
    """Calls the operator in every step; several ranks are replicas that know nothing of each other."""

    samples_per_step = 1.0
    independent = True

    def __init__(
        self,
        arrays: Arrays,
        asked: Asked,
        params: Mapping[str, Any],
        dialect: Dialect,
        seed: int,
        facts: Facts,
    ) -> None:
        self._arrays, self._asked, self._dialect, self._seed = arrays, asked, dialect, seed
        self._dtype, self._facts = str(params["dtype"]), facts
        self._tf32 = str(params.get("float32_precision", "default")) == "tf32"
        self._given: Dict[str, Any] = {
            name: arrays.normal(dialect.laid_out(name, shape), self._dtype, 10 * seed + number)
            for number, (name, shape) in enumerate(inputs_of(asked).items())
        }
        self._operate = arrays.compiled(dialect.operator(asked))
        try:
            self._results: Sequence[Any] = self._operate(*self._given.values())
            arrays.finish(*self._results)
        except (RuntimeError, NotImplementedError, ValueError) as met:
            raise _refused(arrays, met) from met
        except Exception as met:  # TensorFlow's errors have a base of their own
            if type(met).__module__.startswith("tensorflow"):
                raise _refused(arrays, met) from met
            raise

    def check(self) -> Check:
        """Chosen elements of every result against their sums in float64."""
        self.step()
        host = {name: self._plain(name, array) for name, array in self._given.items()}
        computed = {
            name: self._plain(name, array) for name, array in zip(results_of(self._asked), self._results)
        }
        stored = UNIT_ROUNDOFF[self._dtype]
        summed = min(stored, UNIT_ROUNDOFF["float32"])
        stored = max(stored, TF32_ROUNDOFF) if self._tf32 else stored
        error = worst_error(self._asked.problem, host, computed, self._seed)
        return Check(error, product_tolerance(num_terms(self._asked), stored, summed), REFERENCE)

    def _plain(self, name: str, array: Any) -> Any:
        return self._dialect.as_benchdnn(name, self._arrays.to_host(array))

    def step(self) -> None:
        self._results = self._operate(*self._given.values())
        self._arrays.finish(*self._results)

    def agree(self, flag: bool) -> bool:
        return flag

    def facts(self) -> Mapping[str, Any]:
        told = {"problem": str(self._asked.problem), "types": types_of(self._dtype, "u8")}
        return {**self._facts(), **told, "direction": self._asked.direction}

    def loss(self) -> Optional[float]:
        return None

    def close(self) -> None:
        return None


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
) -> ConvolutionJob:
    """The job; raises Infeasible with the reason where the framework has no such convolution."""
    runtime = arrays.runtime
    require_defaults(
        params, ("memory_format", "execution", "freezing", "data"), f"{runtime}'s convolution is one operator"
    )
    refusal = CONVOLUTION.refusal(params)
    if refusal is not None:
        raise Infeasible(refusal)
    asked, dtype = CONVOLUTION.asked(workload_args(params)), str(params["dtype"])
    if dtype not in UNIT_ROUNDOFF:
        raise Infeasible(
            f"dtype {dtype}: {runtime} has no convolution of whole numbers that rounds its result"
        )
    if asked.benchdnn:
        raise Infeasible("args.benchdnn: its figures are read beside torch's")
    free_bytes = arrays.free_bytes()
    if arrays.device == "cpu":
        free_bytes = host_share_bytes(context, free_bytes)
    lacking = CONVOLUTION.lack_of_memory(params, free_bytes)
    if lacking is not None:
        raise no_room(lacking, CONVOLUTION.needed_bytes(params), arrays.device, context.num_ranks)
    return ConvolutionJob(arrays, asked, params, dialect, context.rank, facts)


def _refused(arrays: Arrays, met: Exception) -> Infeasible:
    lines = [line.strip() for line in str(met).splitlines() if line.strip()] or [type(met).__name__]
    telling = [line for line in lines[1:] if not line.startswith(("Detected", "File ", "[["))]
    said = telling[-1] if telling and lines[0].startswith("Graph execution error") else lines[0]
    return Infeasible(f"{arrays.runtime} has no such convolution: {said[:300]}")
