"""TensorFlow as a runtime: kernels, primitives and users' own steps.

Measured side: standard library, numpy and tensorflow only, Python 3.9. tensorflow is imported when the
runtime is warmed; its threads and devices come into being in the rank, at the first use, on its own CPUs.
"""

from __future__ import annotations

import functools
import platform
from typing import Any, Mapping

from corewise.runtimes.base import Job, RankContext
from corewise.runtimes.imported import ImportedRuntime
from corewise.runtimes.kernel_job import prepare_kernel
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.steps import StepJob
from corewise.workloads.base import workload_args
from corewise.workloads.custom import CustomModule, build_custom
from corewise.workloads.kernels.base import Kernel


class TensorflowRuntime(ImportedRuntime):
    """Turns trials into jobs of TensorFlow tensors."""

    name = "tensorflow"
    title = "TensorFlow"
    warm_modules = ("corewise.runtimes.tensorflow.matmul", "corewise.runtimes.tensorflow.functions")

    def versions(self) -> Mapping[str, str]:
        import numpy
        import tensorflow  # type: ignore[import-untyped]

        versions = {
            "python": platform.python_version(),
            "tensorflow": str(tensorflow.__version__),
            "numpy": numpy.__version__,
        }
        built_with = tensorflow.sysconfig.get_build_info()
        told = {"cuda": "cuda_version", "cudnn": "cudnn_version"}
        return {**versions, **{k: str(built_with[v]) for k, v in told.items() if v in built_with}}

    def prepare(self, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of a trial; raises Infeasible where TensorFlow has no such thing."""
        require_defaults(
            params, ("memory_format", "execution", "freezing", "data"), "tensorflow has no choice of it here"
        )
        return self.job_of(params, context)

    def kernel_job(self, kernel: Kernel, params: Mapping[str, Any], context: RankContext) -> Job:
        from corewise.runtimes.tensorflow.arrays import TensorflowArrays
        from corewise.runtimes.tensorflow.settings import apply_to_process, process_facts

        ordinal, device = apply_to_process(params, context), str(params["device"])
        facts = functools.partial(process_facts, device, ordinal)
        return prepare_kernel(kernel, TensorflowArrays(device, ordinal), params, context, facts)

    def custom_job(self, name: str, params: Mapping[str, Any], context: RankContext) -> Job:
        from corewise.runtimes.tensorflow.functions import function_job
        from corewise.runtimes.tensorflow.settings import apply_to_process, finish_device, process_facts

        require_defaults(params, ("dtype",), "a custom workload decides it")
        ordinal, device = apply_to_process(params, context), str(params["device"])
        made = build_custom(name, rank_batch(params), str(params["mode"]), workload_args(params))
        facts, finish = functools.partial(process_facts, device, ordinal), finish_device(device)
        if isinstance(made, CustomModule):
            return function_job(name, made, params, facts, finish)
        return StepJob(name, made, facts, finish)
