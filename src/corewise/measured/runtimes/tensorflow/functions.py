"""Run the function or Keras model of a user on TensorFlow.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.parameters import TrialParameters
from corewise.measured.runtimes.trial_params import compute_rank_batch
from corewise.measured.runtimes.user_functions import FunctionJob, require_inference
from corewise.measured.workloads.custom import CustomModule


def prepare_function_job(
    name: str,
    custom: CustomModule,
    params: TrialParameters,
    facts: Callable[[], Mapping[str, Any]],
    finish: Callable[[], None],
) -> FunctionJob:
    """Prepare the job of a function or model as one graph (tf.function); each step waits for its results."""
    require_inference(name, custom.module, params.mode.value, "tensorflow")
    compiled, inputs = tf.function(custom.module), custom.inputs

    def call() -> None:
        compiled(*inputs)
        finish()

    return FunctionJob(
        compute_rank_batch(params),
        call=call,
        outputs=lambda: _to_host(compiled(*inputs)),
        expected=lambda: _to_host(custom.module(*inputs)),
        facts=facts,
    )


def _to_host(value: Any) -> List[Any]:
    return [np.asarray(each) for each in tf.nest.flatten(value)]
