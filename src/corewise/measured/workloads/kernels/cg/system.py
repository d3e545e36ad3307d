"""A linear system on a device, with its known solution and its checkpoints.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, Mapping, Optional

import numpy as np

from corewise.measured.workloads.kernels.cg.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from corewise.measured.workloads.kernels.cg.iteration import (
    MAX_ITERATIONS_AT_ONCE,
    MAX_ITERATIONS_REPLAYED,
    Solver,
    SolverState,
    choose_iterations_at_once,
)
from corewise.measured.workloads.kernels.cg.operators import Operator, build_operator
from corewise.measured.workloads.kernels.cg.problem import CgProblem
from corewise.measured.workloads.kernels.thread_variables import WAITING_VARIABLES
from corewise.measured.workloads.registry import load_attribute

# Upper bound for the header of a checkpoint.
HEADER_BYTES = 4096
# Prefixes of environment variables that can change the last bits of a result.
VARIABLES = ("ATEN_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "TF_ENABLE_", "XLA_", "NPY_")


class LinearSystem:
    """A problem on a device with its known solution and its solver."""

    def __init__(
        self, arrays: Any, problem: CgProblem, seed: int, num_threads: int, operator: Optional[Operator] = None
    ) -> None:
        self.problem, self._seed = problem, seed
        self._arrays, self._num_threads = arrays, num_threads
        self._libraries: Optional[Mapping[str, str]] = None
        self.operator: Operator = operator or build_operator(
            problem.matrix, arrays, problem.size, problem.shift, seed, num_threads
        )
        self.solution = np.random.default_rng([seed, problem.num_rows]).standard_normal(problem.num_rows)
        self.rhs = self._compute_rhs()
        is_replayed = arrays.writes_in_place and arrays.device != "cpu"
        most = MAX_ITERATIONS_REPLAYED if is_replayed else MAX_ITERATIONS_AT_ONCE
        self.at_once = choose_iterations_at_once(problem.iterations, problem.checkpoint_every, most)
        self.solver = Solver(arrays, self.operator, self.operator.to_layout(self.rhs), self.at_once)

    def _compute_rhs(self) -> Any:
        """Compute b from the known solution; only the stencil has a cheap reference product."""
        if self.problem.matrix != "dense":
            return self.operator.compute_reference(self.solution[np.newaxis])[0]
        return self.compute_product(self.solution)

    def compute_product(self, x: Any) -> Any:
        """Multiply the operator with a plain numpy vector on the device."""
        out = self._arrays.create_zeros((self.operator.length,), "float64")
        vector = self._arrays.from_host(self.operator.to_layout(x))
        out, _ = self.operator.compute_product(self.operator.data, vector, out)
        return self.operator.from_layout(self._arrays.to_host(out))

    def identify_problem(self) -> Mapping[str, Any]:
        """Return the values that identify this problem in a checkpoint; GPUs draw other dense matrices."""
        drawn_on = self._describe_generator() if self.problem.matrix == "dense" else "any"
        return {
            "matrix": self.problem.matrix,
            "size": self.problem.size,
            "shift": self.problem.shift,
            "seed": self._seed,
            "drawn_on": drawn_on,
            "direction": "p / r'r" if self.solver.divided else "p",
        }

    def _describe_generator(self) -> str:
        return "cpu" if self._arrays.device == "cpu" else f"{self._arrays.runtime} on {self._arrays.device}"

    def describe_conditions(self) -> Mapping[str, Any]:
        """Return everything that the last bits of a result depend on."""
        if self._libraries is None:
            self._libraries = describe_libraries(self._arrays.runtime)
        return {
            **self._libraries,
            "runtime": self._arrays.runtime,
            "device": self._arrays.device,
            "num_threads": self._num_threads,
            "iterations_at_once": self.at_once,
            "instructions": detect_instruction_sets(),
        }

    def estimate_checkpoint_bytes(self) -> int:
        """Estimate the size of a checkpoint."""
        return 8 * (3 * self.operator.length + self.problem.iterations + 1) + HEADER_BYTES

    def save(self, path: str, state: SolverState) -> int:
        return write_checkpoint(path, Checkpoint(state, self.identify_problem(), self.describe_conditions()))

    def load(self, path: str) -> Checkpoint:
        """Read a checkpoint; raise BadCheckpoint if it cannot be used."""
        return read_checkpoint(path, self.identify_problem())


def describe_libraries(runtime: str) -> Mapping[str, str]:
    """Return library versions, the CPU capability in use, and environment variables that change results."""
    versions = load_attribute("corewise.measured.runtimes.registry:find_runtime")(runtime).read_versions()
    described = {f"version of {name}": text for name, text in versions.items()}
    if runtime == "torch":
        facts = load_attribute("corewise.measured.runtimes.torch.settings:collect_process_facts")(
            SimpleNamespace(proofs={})
        )
        described["cpu_capability"] = str(facts["cpu_capability"])
    for name in sorted(os.environ):
        # The number of threads is recorded separately.
        if name.startswith(VARIABLES) and not name.endswith("_NUM_THREADS") and name not in WAITING_VARIABLES:
            described[name] = os.environ[name]
    return described


def detect_instruction_sets() -> str:
    """Return the vector instruction sets of the CPU, which change the order of sums."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return "unknown"
    known = [name for name in ("avx", "avx2", "avx512f", "sve", "sve2", "asimd") if name in flags.split()]
    return "+".join(known) or "unknown"
