"""JAX as a runtime: kernels, primitives and users' own steps.

Measured side: standard library, numpy and jax only, Python 3.9. jax is imported when the runtime is warmed;
its threads and devices come into being in the rank, at the first use, on the CPUs the rank was given.
"""

from __future__ import annotations

import functools
import platform
from typing import Any, Mapping

from corewise.runtimes.base import Infeasible, Job, RankContext
from corewise.runtimes.imported import ImportedRuntime
from corewise.runtimes.kernel_job import prepare_kernel
from corewise.runtimes.params import rank_batch, require_defaults
from corewise.runtimes.steps import StepJob
from corewise.workloads.base import workload_args
from corewise.workloads.custom import CustomModule, build_custom
from corewise.workloads.kernels.base import Kernel


class JaxRuntime(ImportedRuntime):
    """Turns trials into jobs of JAX arrays."""

    name = "jax"
    title = "JAX"
    warm_modules = ("corewise.runtimes.jax.matmul", "corewise.runtimes.jax.functions")

    def versions(self) -> Mapping[str, str]:
        import jax
        import numpy

        return {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "jaxlib": str(getattr(jax.lib, "__version__", "unknown")),
            "numpy": numpy.__version__,
        }

    def prepare(self, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of a trial; raises Infeasible where JAX has no such thing."""
        require_defaults(
            params, ("memory_format", "execution", "freezing", "math", "data"), "jax has no choice of it"
        )
        if params["interop_threads"] is not None:
            raise Infeasible("interop_threads has no effect: jax has no threads for operators side by side")
        return self.job_of(params, context)

    def kernel_job(self, kernel: Kernel, params: Mapping[str, Any], context: RankContext) -> Job:
        from corewise.runtimes.jax.arrays import JaxArrays
        from corewise.runtimes.jax.settings import apply_to_process, process_facts

        device = apply_to_process(params, context)
        facts = functools.partial(process_facts, device)
        return prepare_kernel(kernel, JaxArrays(device), params, context, facts)

    def custom_job(self, name: str, params: Mapping[str, Any], context: RankContext) -> Job:
        from corewise.runtimes.jax.functions import function_job
        from corewise.runtimes.jax.settings import apply_to_process, process_facts, wait_for

        require_defaults(params, ("dtype",), "a custom workload decides it")
        device = apply_to_process(params, context)
        made = build_custom(name, rank_batch(params), str(params["mode"]), workload_args(params))
        facts = functools.partial(process_facts, device)
        if isinstance(made, CustomModule):
            return function_job(name, made, params, facts)
        return StepJob(name, made, facts, wait_for)
