"""A user's function on JAX.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping

import jax
import numpy as np

from corewise.runtimes.functions import FunctionJob, require_inference
from corewise.runtimes.jax.settings import wait_for
from corewise.runtimes.params import rank_batch
from corewise.workloads.custom import CustomModule


def function_job(
    name: str, made: CustomModule, params: Mapping[str, Any], facts: Callable[[], Mapping[str, Any]]
) -> FunctionJob:
    """The function under jax.jit, waited for in each step."""
    require_inference(name, made.module, str(params["mode"]), "jax")
    compiled, inputs = jax.jit(made.module), made.inputs

    def expected() -> List[Any]:
        with jax.disable_jit():
            return _on_host(made.module(*inputs))

    return FunctionJob(
        rank_batch(params),
        call=lambda: wait_for(compiled(*inputs)),
        outputs=lambda: _on_host(compiled(*inputs)),
        expected=expected,
        facts=facts,
    )


def _on_host(value: Any) -> List[Any]:
    return [np.asarray(each) for each in jax.tree.leaves(value)]
