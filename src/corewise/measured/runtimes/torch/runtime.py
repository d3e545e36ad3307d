"""The PyTorch runtime.

Measured side: standard library and torch only, Python 3.9. torch is imported when the runtime is warmed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import platform
import re
from typing import Mapping, cast

from corewise.measured.parameters import GENERATED_DATA, Device, DType, MemoryFormat, Mode, TrialParameters
from corewise.measured.runtimes.base import Job, RankContext
from corewise.measured.runtimes.imported_runtime import ImportedRuntime
from corewise.measured.runtimes.trial_params import require_point
from corewise.measured.workloads.base import is_kernel
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.kernels.kernel import Kernel
from corewise.measured.workloads.models.layered_model import LayeredModel
from corewise.measured.workloads.registry import find_workload

# Patterns for the output of torch.__config__.show().
LIBRARIES = {"mkl": r"Math Kernel Library Version (\S+)", "onednn": r"MKL-DNN v(\S+)", "openmp": r"OpenMP (\d+)"}


class TorchRuntime(ImportedRuntime):
    """Turns trials into jobs of torch modules."""

    name = "torch"
    title = "PyTorch"
    warm_modules = (
        "torch.distributed",
        "corewise.measured.runtimes.torch.modules.user_module",
        "corewise.measured.runtimes.torch.primitives.matmul",
        "corewise.measured.runtimes.torch.modules.described_models",
    )

    def warm_for(self, params: TrialParameters) -> None:
        """Import further modules that trials like this one need, before the parent forks ranks."""
        from corewise.measured.runtimes.torch.modules.module_preparation import filter_deprecation_warnings

        needed = []
        if params.execution == "compile" or (params.mode == Mode.TRAIN and params.num_ranks > 1):
            # DistributedDataParallel imports it as well, which takes a second.
            needed.append("torch._dynamo")
        if params.execution == "malleable":
            needed += ["torch.export", "corewise.accelerate.malleable.module_wrapper"]
        if params.execution == "fast-kernels":
            needed.append("corewise.accelerate.fast_kernels.use_fast_kernels")
        if params.memory_format == MemoryFormat.BLOCKED:
            needed.append("torch.utils.mkldnn")
        if _is_kernel_trial(params):
            needed.append("corewise.measured.runtimes.torch.kernels")
        elif params.dtype == DType.INT8:
            needed.append("corewise.accelerate.quantize.quantize_module")
        if params.data not in GENERATED_DATA:
            needed.append("corewise.measured.runtimes.torch.modules.images")
        with filter_deprecation_warnings():
            for module in needed:
                importlib.import_module(module)
            if params.dtype == DType.INT8 and not _is_kernel_trial(params):
                # int8 works without these tools of torch, which may be removed.
                with contextlib.suppress(ImportError):
                    importlib.import_module("torch.ao.quantization.quantize_fx")

    def read_versions(self) -> Mapping[str, str]:
        import torch

        versions = {"python": platform.python_version(), "torch": torch.__version__}
        built_with = torch.__config__.show()
        for name, pattern in LIBRARIES.items():
            match = re.search(pattern, built_with)
            if match:
                versions[name] = match.group(1)
        if torch.version.cuda:
            versions["cuda"] = torch.version.cuda
        try:
            import numpy
        except ImportError:
            return versions
        return {**versions, "numpy": numpy.__version__}

    def prepare(self, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of a trial; raise Infeasible if torch does not support it on this machine."""
        if params.breakdown is not None:
            from corewise.measured.runtimes.torch.breakdown.job import BreakdownJob

            return BreakdownJob(self.prepare(dataclasses.replace(params, breakdown=None), context), params)
        from corewise.measured.runtimes.torch.settings import apply_to_process, read_settings

        name = params.workload
        apply_to_process(params, shares_threads=not is_custom(name))
        if params.execution == "compile" and context.cache:
            # Code cached by an older trial would hide the compile time.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = context.cache
        if params.execution == "compile" and params.device == Device.CPU:
            from corewise.measured.runtimes.torch.modules.compile_once import prepare_compiler

            prepare_compiler(context)
        if params.execution == "malleable" and context.cache:
            # A plan stored by an older trial would hide the planning time.
            os.environ["COREWISE_PLANS"] = context.cache
        if is_custom(name):
            from corewise.measured.runtimes.torch.modules.user_module import prepare_custom

            return prepare_custom(params, context, read_settings(params, context))
        workload = find_workload(name)
        if is_kernel(workload):
            from corewise.measured.runtimes.torch.kernels import prepare_torch_kernel

            return prepare_torch_kernel(cast(Kernel, workload), params, context)
        if isinstance(workload, LayeredModel):
            from corewise.measured.runtimes.torch.modules.described_models import prepare_model

            require_point(workload, params)
            return prepare_model(workload, params, context, read_settings(params, context))
        return self.prepare_built_job(workload, params, context)


def _is_kernel_trial(params: TrialParameters) -> bool:
    """Return whether the workload is a kernel; finding it imports its module for later ranks."""
    name = params.workload
    return not is_custom(name) and is_kernel(find_workload(name))
