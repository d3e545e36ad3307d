"""Run the function of a user on JAX.

Measured side: standard library, numpy and jax only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping

import jax
import numpy as np

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.jax.settings import wait_for
from corewise.measured.runtimes.trial_params import compute_rank_batch
from corewise.measured.runtimes.user_functions import FunctionJob, require_inference
from corewise.measured.workloads.custom import CustomModule


def prepare_function_job(
    name: str, custom: CustomModule, params: TrialParameters, facts: Callable[[], Mapping[str, Any]]
) -> FunctionJob:
    """Prepare the job of a function under jax.jit; each step waits for its results."""
    require_inference(name, custom.module, params.mode.value, "jax")
    compiled, inputs = jax.jit(custom.module), custom.inputs

    def compute_expected() -> List[Any]:
        with jax.disable_jit():
            return _to_host(custom.module(*inputs))

    return FunctionJob(
        compute_rank_batch(params),
        call=lambda: wait_for(compiled(*inputs)),
        outputs=lambda: _to_host(compiled(*inputs)),
        expected=compute_expected,
        facts=facts,
    )


def _to_host(value: Any) -> List[Any]:
    return [np.asarray(each) for each in jax.tree.leaves(value)]
