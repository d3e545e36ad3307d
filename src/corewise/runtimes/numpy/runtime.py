"""NumPy as a runtime: kernels, primitives and users' own steps.

Measured side: standard library and numpy only, Python 3.9. How many threads numpy's BLAS uses is fixed by its
environment when it is loaded; the launcher sets it, and the facts read it back.
"""

from __future__ import annotations

import os
import platform
from typing import Any, Mapping

from corewise.runtimes.base import Job, RankContext, WorkloadError
from corewise.runtimes.imported import ImportedRuntime
from corewise.runtimes.kernel_job import prepare_kernel
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.steps import StepJob
from corewise.workloads.base import workload_args
from corewise.workloads.custom import CustomModule, build_custom
from corewise.workloads.kernels.base import Kernel

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


class NumpyRuntime(ImportedRuntime):
    """Turns trials into jobs of numpy arrays."""

    name = "numpy"
    title = "NumPy"
    installed_by = "numpy"
    warm_modules = ("corewise.runtimes.numpy.arrays", "corewise.runtimes.numpy.matmul")

    def versions(self) -> Mapping[str, str]:
        import numpy

        return {"python": platform.python_version(), "numpy": numpy.__version__, **_blas_version()}

    def prepare(self, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of a trial; raises Infeasible where numpy has no such thing."""
        require_defaults(
            params, ("device", "memory_format", "execution", "math", "data"), "numpy has no choice of it"
        )
        return self.job_of(params, context)

    def kernel_job(self, kernel: Kernel, params: Mapping[str, Any], context: RankContext) -> Job:
        from corewise.runtimes.numpy.arrays import NumpyArrays

        return prepare_kernel(kernel, NumpyArrays(), params, context, kernel_facts)

    def custom_job(self, name: str, params: Mapping[str, Any], context: RankContext) -> Job:
        require_defaults(params, ("dtype",), "a custom step decides it")
        made = build_custom(name, rank_batch(params), str(params["mode"]), workload_args(params))
        if isinstance(made, CustomModule):
            raise WorkloadError(
                f"{name} returned a {type(made.module).__name__}, which needs runtime torch, not numpy"
            )
        return StepJob(name, made, read_back, lambda: None)


def read_back() -> Mapping[str, Any]:
    """What is known of numpy's threads: the environment it was loaded with."""
    return {"blas_environment": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}}


def kernel_facts() -> Mapping[str, Any]:
    """What a kernel's threads are: numpy computes element by element in one."""
    return {**read_back(), "num_elementwise_threads": 1}


def _blas_version() -> Mapping[str, str]:
    import numpy

    try:
        config: Any = numpy.show_config(mode="dicts")
        blas = config["Build Dependencies"]["blas"]
        return {"blas": f"{blas['name']} {blas['version']}"}
    except (TypeError, KeyError):  # numpy before 1.25 only prints
        return {}
