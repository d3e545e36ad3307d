"""The JAX runtime: kernels, primitives and custom steps.

Measured side: standard library, numpy and jax only, Python 3.9. The warm parent imports jax; each rank
creates its threads and devices on first use, on the CPUs of the rank.
"""

from __future__ import annotations

import functools
import platform
from typing import Mapping

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, Job, RankContext
from corewise.measured.runtimes.imported_runtime import ImportedRuntime
from corewise.measured.runtimes.kernel_job import prepare_kernel
from corewise.measured.runtimes.trial_params import compute_rank_batch, require_defaults
from corewise.measured.runtimes.user_steps import StepJob
from corewise.measured.workloads.custom import CustomModule, build_custom
from corewise.measured.workloads.kernels.kernel import Kernel


class JaxRuntime(ImportedRuntime):
    """Turns trials into jobs on JAX arrays."""

    name = "jax"
    title = "JAX"
    warm_modules = ("corewise.measured.runtimes.jax.primitives.matmul", "corewise.measured.runtimes.jax.functions")

    def read_versions(self) -> Mapping[str, str]:
        import jax
        import numpy

        return {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "jaxlib": str(getattr(jax.lib, "__version__", "unknown")),
            "numpy": numpy.__version__,
        }

    def prepare(self, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of a trial; raise Infeasible if JAX does not support it."""
        require_defaults(params, ("memory_format", "execution", "freezing", "math", "data"), "jax has no such option")
        if params.interop_threads is not None:
            raise Infeasible("interop_threads has no effect: jax runs operators one at a time")
        return self.prepare_job(params, context)

    def prepare_kernel_job(self, kernel: Kernel, params: TrialParameters, context: RankContext) -> Job:
        from corewise.measured.runtimes.jax.arrays import JaxArrays
        from corewise.measured.runtimes.jax.settings import apply_to_process, read_process_facts

        device = apply_to_process(params, context)
        facts = functools.partial(read_process_facts, device)
        return prepare_kernel(kernel, JaxArrays(device), params, context, facts)

    def prepare_custom_job(self, name: str, params: TrialParameters, context: RankContext) -> Job:
        from corewise.measured.runtimes.jax.functions import prepare_function_job
        from corewise.measured.runtimes.jax.settings import apply_to_process, read_process_facts, wait_for

        require_defaults(params, ("dtype",), "a custom workload decides it")
        device = apply_to_process(params, context)
        custom = build_custom(name, compute_rank_batch(params), params.mode.value, params.arguments)
        facts = functools.partial(read_process_facts, device)
        if isinstance(custom, CustomModule):
            return prepare_function_job(name, custom, params, facts)
        return StepJob(name, custom, facts, wait_for)
