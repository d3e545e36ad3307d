"""The NumPy runtime: kernels, primitives and custom steps.

Measured side: standard library and numpy only, Python 3.9. The environment fixes the number of BLAS threads
when numpy is loaded; the launcher sets it, and the facts read it back.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Mapping

from corewise.measured.parameters import Collectives, TrialParameters
from corewise.measured.runtimes.base import Infeasible, Job, RankContext, WorkloadError
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.imported_runtime import ImportedRuntime
from corewise.measured.runtimes.kernel_job import prepare_kernel
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.runtimes.user_steps import StepJob
from corewise.measured.workloads.custom import CustomModule, build_custom
from corewise.measured.workloads.kernels.kernel import Kernel

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


class NumpyRuntime(ImportedRuntime):
    """Turns trials into jobs on numpy arrays."""

    name = "numpy"
    title = "NumPy"
    installed_by = "numpy"
    warm_modules = ("corewise.measured.runtimes.numpy.arrays", "corewise.measured.runtimes.numpy.primitives.matmul")

    def read_versions(self) -> Mapping[str, str]:
        import numpy

        return {"python": platform.python_version(), "numpy": numpy.__version__, **_read_blas_version()}

    def prepare(self, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of a trial; raise Infeasible if numpy does not support it."""
        require_defaults(params, ("device", "memory_format", "execution", "math", "data"), "numpy has no such option")
        return self.prepare_job(params, context)

    def prepare_kernel_job(self, kernel: Kernel, params: TrialParameters, context: RankContext) -> Job:
        from corewise.measured.runtimes.numpy.arrays import NumpyArrays

        def connect() -> Communicator:
            return open_communicator(params, context)

        return prepare_kernel(kernel, NumpyArrays(), params, context, read_kernel_facts, connect)

    def prepare_custom_job(self, name: str, params: TrialParameters, context: RankContext) -> Job:
        require_defaults(params, ("dtype",), "a custom step decides it")
        custom = build_custom(name, compute_rank_batch(params), params.mode.value, params.arguments)
        if isinstance(custom, CustomModule):
            raise WorkloadError(
                f"{name} returned a {type(custom.module).__name__}, which needs runtime torch, not numpy"
            )
        return StepJob(name, custom, read_back, lambda: None)


def open_communicator(params: TrialParameters, context: RankContext) -> Communicator:
    """Connect the ranks of a trial over MPI, the only backend of numpy; raise Infeasible if it cannot be."""
    if params.collectives not in (Collectives.DEFAULT, Collectives.MPI):
        raise Infeasible(f"collectives {params.collectives.value}: numpy has mpi only")
    from corewise.measured.runtimes.mpi.mpi_communicator import MpiCommunicator

    return MpiCommunicator(context)


def read_back() -> Mapping[str, Any]:
    """Read the thread settings of the environment with which numpy was loaded."""
    return {"blas_environment": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}}


def read_kernel_facts() -> Mapping[str, Any]:
    """Read the thread settings of kernels; elementwise operations of numpy use one thread."""
    return {**read_back(), "num_elementwise_threads": 1}


def _read_blas_version() -> Mapping[str, str]:
    import numpy

    try:
        config: Any = numpy.show_config(mode="dicts")
        blas = config["Build Dependencies"]["blas"]
        return {"blas": f"{blas['name']} {blas['version']}"}
    except (TypeError, KeyError):
        # numpy before 1.25 only prints its configuration.
        return {}
