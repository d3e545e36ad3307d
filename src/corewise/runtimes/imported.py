"""What runtimes have in common whose framework is imported once, in the parent of all ranks.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import importlib
from typing import Any, Mapping, Tuple, cast

from corewise.runtimes.base import Infeasible, Job, MissingPart, RankContext
from corewise.runtimes.params import require_point
from corewise.workloads.custom import is_custom
from corewise.workloads.registry import find_workload, load_attribute


class ImportedRuntime:
    """A framework, its modules of this package, and the workloads that bring a builder for it."""

    name = ""  # of the runtime and of the module to import
    title = ""  # as its makers write it
    warm_modules: Tuple[str, ...] = ()

    def warm(self) -> None:
        """Import the framework and this package's own modules, so that no forked rank has to."""
        try:
            importlib.import_module(self.name)
        except ImportError as problem:
            raise MissingPart(
                f"{self.title} is not installed for this Python: pip install 'corewise[{self.name}]', "
                f"or name in the study's `python:` one that has it ({problem})"
            ) from problem
        for module in self.warm_modules:
            importlib.import_module(module)

    def warm_for(self, params: Mapping[str, Any]) -> None:
        """Import the workload itself."""
        if not is_custom(str(params["workload"])):
            find_workload(str(params["workload"]))

    def built(self, workload: Any, params: Mapping[str, Any], context: RankContext) -> Job:
        """The job that the workload's own builder makes; raises Infeasible where it has none."""
        require_point(workload, params)
        builder = getattr(workload, "builders", {}).get(self.name)
        if builder is None:
            raise Infeasible(
                f"{workload.name} does not run on {self.name}; it runs on {', '.join(workload.runtimes)}"
            )
        return cast(Job, load_attribute(builder)(params, context))
