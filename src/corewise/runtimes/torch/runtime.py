"""PyTorch as a runtime.

Measured side: standard library and torch only, Python 3.9. torch is imported when the runtime is warmed.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from typing import Any, Mapping, cast

from corewise.runtimes.base import Job, RankContext
from corewise.runtimes.imported import ImportedRuntime
from corewise.runtimes.params import require_point
from corewise.workloads.base import is_kernel
from corewise.workloads.custom import is_custom
from corewise.workloads.kernels.base import Kernel
from corewise.workloads.models.layered import LayeredModel
from corewise.workloads.registry import find_workload

LIBRARIES = {  # as torch.__config__ spells them
    "mkl": r"Math Kernel Library Version (\S+)",
    "onednn": r"MKL-DNN v(\S+)",
    "openmp": r"OpenMP (\d+)",
}


class TorchRuntime(ImportedRuntime):
    """Turns trials into jobs of torch modules."""

    name = "torch"
    title = "PyTorch"
    warm_modules = (
        "torch.distributed",
        "corewise.runtimes.torch.custom",
        "corewise.runtimes.torch.matmul",
        "corewise.runtimes.torch.models",
    )

    def warm_for(self, params: Mapping[str, Any]) -> None:
        """Import what trials like this one need besides; for the parent, before it forks ranks."""
        from corewise.runtimes.torch.execution import silent_deprecation

        needed = []
        if params["execution"] == "compile" or (params["mode"] == "train" and int(params["processes"]) > 1):
            needed.append("torch._dynamo")  # a second, also for DistributedDataParallel
        if params["execution"] == "malleable":
            needed += ["torch.export", "corewise.dataflow.malleable"]
        if params["execution"] == "quickened":
            needed.append("corewise.runtimes.torch.quickened")
        if params["memory_format"] == "blocked":
            needed.append("torch.utils.mkldnn")
        if _names_kernel(params):
            needed.append("corewise.runtimes.torch.kernels")
        elif params["dtype"] == "int8":
            needed.append("torch.ao.quantization.quantize_fx")
        if params["data"] != "synthetic":
            needed.append("corewise.runtimes.torch.images")
        with silent_deprecation():
            for module in needed:
                importlib.import_module(module)

    def versions(self) -> Mapping[str, str]:
        import torch

        versions = {"python": platform.python_version(), "torch": torch.__version__}
        built_with = torch.__config__.show()
        for name, pattern in LIBRARIES.items():
            found = re.search(pattern, built_with)
            if found:
                versions[name] = found.group(1)
        if torch.version.cuda:
            versions["cuda"] = torch.version.cuda
        try:
            import numpy
        except ImportError:
            return versions
        return {**versions, "numpy": numpy.__version__}

    def prepare(self, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of a trial; raises Infeasible where torch has no such thing here."""
        if "breakdown" in params:
            from corewise.runtimes.torch.breakdown_job import taken_apart

            plain = {name: value for name, value in params.items() if name != "breakdown"}
            return taken_apart(self.prepare(plain, context), params)
        from corewise.runtimes.torch.settings import apply_to_process, read_settings

        name = str(params["workload"])
        apply_to_process(params, shares_threads=not is_custom(name))
        if params["execution"] == "compile" and context.cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = context.cache  # an older trial's code is no compile time
        if params["execution"] == "compile" and params["device"] == "cpu":
            from corewise.runtimes.torch.compiling import prepare_compiler

            prepare_compiler(context)
        if params["execution"] == "malleable" and context.cache:
            os.environ["COREWISE_PLANS"] = context.cache  # an older trial's plan is no planning time
        if is_custom(name):
            from corewise.runtimes.torch.custom import prepare_custom

            return prepare_custom(params, context, read_settings(params, context))
        workload = find_workload(name)
        if is_kernel(workload):
            from corewise.runtimes.torch.kernels import prepare_torch_kernel

            return prepare_torch_kernel(cast(Kernel, workload), params, context)
        if isinstance(workload, LayeredModel):
            from corewise.runtimes.torch.models import prepare_model

            require_point(workload, params)
            return prepare_model(workload, params, context, read_settings(params, context))
        return self.built(workload, params, context)


def _names_kernel(params: Mapping[str, Any]) -> bool:
    """True where the trial's workload is a kernel; finding it imports its module, for ranks to come."""
    name = str(params["workload"])
    return not is_custom(name) and is_kernel(find_workload(name))
