"""What runtimes have in common whose framework is imported once, in the parent of all ranks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import importlib
from typing import Any, Mapping, Tuple, cast

from corewise.runtimes.base import Infeasible, Job, MissingPart, RankContext
from corewise.runtimes.params import require_point
from corewise.workloads.base import is_kernel
from corewise.workloads.custom import is_custom
from corewise.workloads.kernels.base import Kernel
from corewise.workloads.registry import find_workload, load_attribute


class ImportedRuntime:
    """A framework, its modules of this package, and the workloads that bring a builder for it."""

    name = ""  # of the runtime and of the module to import
    title = ""  # as its makers write it
    installed_by = ""  # words for pip, where it is not an extra of this package
    warm_modules: Tuple[str, ...] = ()

    def warm(self) -> None:
        """Import the framework and this package's own modules, so that no forked rank has to."""
        try:
            importlib.import_module(self.name)
        except ImportError as problem:
            words = self.installed_by or f"'corewise[{self.name}]'"
            raise MissingPart(
                f"{self.title} is not installed for this Python: pip install {words}, "
                f"or name in the study's `python:` one that has it ({problem})"
            ) from problem
        for module in self.warm_modules:
            importlib.import_module(module)

    def warm_for(self, params: Mapping[str, Any]) -> None:
        """Import the workload itself."""
        if not is_custom(str(params["workload"])):
            find_workload(str(params["workload"]))

    def job_of(self, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of what the trial names: a user's own step, a kernel, or what brings a builder."""
        name = str(params["workload"])
        if is_custom(name):
            return self.custom_job(name, params, context)
        workload = find_workload(name)
        if is_kernel(workload):
            return self.kernel_job(cast(Kernel, workload), params, context)
        return self.built(workload, params, context)

    def custom_job(self, name: str, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of a user's own factory."""
        raise NotImplementedError

    def kernel_job(self, kernel: Kernel, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job of a kernel on the framework's arrays."""
        raise NotImplementedError

    def built(self, workload: Any, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job that the workload's own builder makes; raises Infeasible where it has none."""
        require_point(workload, params)
        builder = getattr(workload, "builders", {}).get(self.name)
        if builder is None:
            raise Infeasible(
                f"{workload.name} does not run on {self.name}; it runs on {', '.join(workload.runtimes)}"
            )
        return cast(Job, load_attribute(builder)(params, context))
