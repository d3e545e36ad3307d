"""A system of equations on a device, with its known solution and its checkpoints.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Mapping, Optional

import numpy as np

from corewise.workloads.kernels.cg_checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from corewise.workloads.kernels.cg_iteration import (
    MOST_AT_ONCE,
    MOST_REPLAYED,
    Solver,
    State,
    iterations_at_once,
)
from corewise.workloads.kernels.cg_operators import Operator, make_operator
from corewise.workloads.kernels.cg_problem import Problem
from corewise.workloads.registry import load_attribute

HEADER_BYTES = 4096  # at the most, of a checkpoint
VARIABLES = ("ATEN_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "TF_ENABLE_", "XLA_", "NPY_")


class System:
    """A problem on a device with its known solution, and everything that a solve of it needs."""

    def __init__(self, arrays: Any, problem: Problem, seed: int, num_threads: int) -> None:
        self.problem, self._seed = problem, seed
        self._arrays, self._num_threads = arrays, num_threads
        self._libraries: Optional[Mapping[str, str]] = None
        self.operator: Operator = make_operator(
            problem.matrix, arrays, problem.size, problem.shift, seed, num_threads
        )
        self.solution = np.random.default_rng([seed, problem.num_rows]).standard_normal(problem.num_rows)
        self.rhs = self._rhs()
        is_replayed = arrays.writes_in_place and arrays.device != "cpu"
        most = MOST_REPLAYED if is_replayed else MOST_AT_ONCE
        self.at_once = iterations_at_once(problem.iterations, problem.checkpoint_every, most)
        self.solver = Solver(arrays, self.operator, self.operator.embed(self.rhs), self.at_once)

    def _rhs(self) -> Any:
        """Of the stencil by its plain product; a dense matrix is too large to read back just for this."""
        if self.problem.matrix != "dense":
            return self.operator.reference(self.solution[np.newaxis])[0]
        return self.times(self.solution)

    def times(self, x: Any) -> Any:
        """The operator's own product with a plain numpy vector."""
        out = self._arrays.zeros((self.operator.length,), "float64")
        given = self._arrays.from_host(self.operator.embed(x))
        out, _ = self.operator.product(self.operator.data, given, out)
        return self.operator.extract(self._arrays.to_host(out))

    def identity(self) -> Mapping[str, Any]:
        """What makes a checkpoint one of this problem; the generator of a dense matrix differs on a GPU."""
        drawn_on = self._drawn_on() if self.problem.matrix == "dense" else "any"
        return {
            "matrix": self.problem.matrix,
            "size": self.problem.size,
            "shift": self.problem.shift,
            "seed": self._seed,
            "drawn_on": drawn_on,
            "direction": "p / r'r" if self.solver.divided else "p",
        }

    def _drawn_on(self) -> str:
        return "cpu" if self._arrays.device == "cpu" else f"{self._arrays.runtime} on {self._arrays.device}"

    def conditions(self) -> Mapping[str, Any]:
        """What the last bits of a result depend on."""
        if self._libraries is None:
            self._libraries = libraries(self._arrays.runtime)
        return {
            **self._libraries,
            "runtime": self._arrays.runtime,
            "device": self._arrays.device,
            "num_threads": self._num_threads,
            "iterations_at_once": self.at_once,
            "instructions": instruction_sets(),
        }

    def checkpoint_bytes(self) -> int:
        """About what a checkpoint takes."""
        return 8 * (3 * self.operator.length + self.problem.iterations + 1) + HEADER_BYTES

    def save(self, path: str, state: State) -> int:
        return write_checkpoint(path, Checkpoint(state, self.identity(), self.conditions()))

    def load(self, path: str) -> Checkpoint:
        """The checkpoint in a file; BadCheckpoint where it cannot be used."""
        return read_checkpoint(path, self.identity())


def libraries(runtime: str) -> Mapping[str, str]:
    """Versions of what computes, the instructions it takes, and variables that change either."""
    versions = load_attribute("corewise.runtimes.registry:find_runtime")(runtime).versions()
    found = {f"version of {name}": text for name, text in versions.items()}
    if runtime == "torch":
        facts = load_attribute("corewise.runtimes.torch.settings:process_facts")(SimpleNamespace(proofs={}))
        found["cpu_capability"] = str(facts["cpu_capability"])
    for name in sorted(os.environ):
        if name.startswith(VARIABLES) and not name.endswith("_NUM_THREADS"):  # those are stated as threads
            found[name] = os.environ[name]
    return found


def instruction_sets() -> str:
    """What the processor can do, in one word: vector instructions change the order of sums."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return "unknown"
    known = [name for name in ("avx", "avx2", "avx512f", "sve", "sve2", "asimd") if name in flags.split()]
    return "+".join(known) or "unknown"
