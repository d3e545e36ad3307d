"""The base class of runtimes whose framework is imported once, in the parent of all ranks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import importlib
from typing import Tuple, cast

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.base import Infeasible, Job, MissingPart, RankContext
from corewise.measured.runtimes.trial_params import require_point
from corewise.measured.workloads.base import Workload, is_kernel
from corewise.measured.workloads.custom import is_custom
from corewise.measured.workloads.kernels.kernel import Kernel
from corewise.measured.workloads.registry import find_workload, load_attribute


class ImportedRuntime:
    """A framework, the modules of this package for it, and the workloads that have a builder for it.

    Attributes:
        name: the name of the runtime and of the module to import.
        title: the name of the framework in messages.
        pip_requirement: what pip installs, if the framework is not an extra of this package.
        warm_modules: modules of this package to import in the parent.
    """

    name = ""
    title = ""
    pip_requirement = ""
    warm_modules: Tuple[str, ...] = ()

    def warm(self) -> None:
        """Import the framework and the modules of this package once, before ranks are forked."""
        try:
            importlib.import_module(self.name)
        except ImportError as problem:
            requirement = self.pip_requirement or f"'corewise[{self.name}]'"
            raise MissingPart(
                f"{self.title} is not installed for this Python ({problem}). Run pip install {requirement}, "
                "or set `python:` in the study to an interpreter that has it"
            ) from problem
        for module in self.warm_modules:
            importlib.import_module(module)

    def warm_for(self, params: TrialParameters) -> None:
        """Import the workload."""
        if not is_custom(params.workload):
            find_workload(params.workload)

    def prepare_job(self, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of a custom workload, a kernel, or a workload with a builder."""
        name = params.workload
        if is_custom(name):
            return self.prepare_custom_job(name, params, context)
        workload = find_workload(name)
        if is_kernel(workload):
            return self.prepare_kernel_job(cast(Kernel, workload), params, context)
        return self.prepare_built_job(workload, params, context)

    def prepare_custom_job(self, name: str, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of the factory of a user."""
        raise NotImplementedError

    def prepare_kernel_job(self, kernel: Kernel, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job of a kernel on the arrays of the framework."""
        raise NotImplementedError

    def prepare_built_job(self, workload: Workload, params: TrialParameters, context: RankContext) -> Job:
        """Prepare the job with the builder of the workload; raise Infeasible if it has none."""
        require_point(workload, params)
        builder = workload.builders.get(self.name)
        if builder is None:
            raise Infeasible(f"{workload.name} does not run on {self.name}; it runs on {', '.join(workload.runtimes)}")
        return cast(Job, load_attribute(builder)(params, context))
