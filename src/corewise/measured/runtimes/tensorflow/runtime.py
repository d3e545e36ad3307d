"""The TensorFlow runtime: kernels, primitives and custom steps.

Measured side: standard library, numpy and tensorflow only, Python 3.9. The warm parent imports tensorflow;
each rank creates its threads and devices on first use, on the CPUs of the rank.
"""

from __future__ import annotations

import functools
import platform
from typing import Mapping

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Job, RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.imported_runtime import ImportedRuntime
from corewise.measured.runtimes.kernel_job import prepare_kernel
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.runtimes.user_steps import StepJob
from corewise.measured.workloads.custom import CustomModule, build_custom
from corewise.measured.workloads.kernels.kernel import Kernel


class TensorflowRuntime(ImportedRuntime):
    """Turns trials into jobs on TensorFlow tensors."""

    name = "tensorflow"
    title = "TensorFlow"
    warm_modules = (
        "corewise.measured.runtimes.tensorflow.primitives.matmul",
        "corewise.measured.runtimes.tensorflow.functions",
    )

    def read_versions(self) -> Mapping[str, str]:
        import numpy
        import tensorflow  # type: ignore[import-untyped]

        versions = {
            "python": platform.python_version(),
            "tensorflow": str(tensorflow.__version__),
            "numpy": numpy.__version__,
        }
        built_with = tensorflow.sysconfig.get_build_info()
        build_keys = {"cuda": "cuda_version", "cudnn": "cudnn_version"}
        return {**versions, **{k: str(built_with[v]) for k, v in build_keys.items() if v in built_with}}

    def prepare(self, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of a trial; raise Infeasible if TensorFlow does not support it."""
        require_defaults(
            params, ("memory_format", "execution", "freezing", "data"), "tensorflow has no such option here"
        )
        return self.prepare_job(params, context)

    def prepare_kernel_job(self, kernel: Kernel, params: TrialParameters, context: RankContext) -> Job:
        from corewise.measured.runtimes.tensorflow.arrays import TensorflowArrays
        from corewise.measured.runtimes.tensorflow.settings import apply_to_process, read_process_facts

        ordinal, device = apply_to_process(params, context), params.device.value
        facts = functools.partial(read_process_facts, device, ordinal)

        def connect() -> Communicator:
            from corewise.measured.runtimes.tensorflow.communication.grpc_tasks import GrpcTasks

            return GrpcTasks(params, context)

        return prepare_kernel(kernel, TensorflowArrays(device, ordinal), params, context, facts, connect)

    def prepare_custom_job(self, name: str, params: TrialParameters, context: RankContext) -> Job:
        from corewise.measured.runtimes.tensorflow.functions import prepare_function_job
        from corewise.measured.runtimes.tensorflow.settings import apply_to_process, read_process_facts, select_finish

        require_defaults(params, ("dtype",), "a custom workload decides it")
        ordinal, device = apply_to_process(params, context), params.device.value
        custom = build_custom(name, compute_rank_batch(params), params.mode.value, params.arguments)
        facts, finish = functools.partial(read_process_facts, device, ordinal), select_finish(device)
        if isinstance(custom, CustomModule):
            return prepare_function_job(name, custom, params, facts, finish)
        return StepJob(name, custom, facts, finish)
