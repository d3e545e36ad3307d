"""A user's function or Keras model on TensorFlow.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.runtimes.functions import FunctionJob, require_inference
from corewise.runtimes.params import rank_batch
from corewise.workloads.custom import CustomModule


def function_job(
    name: str,
    made: CustomModule,
    params: Mapping[str, Any],
    facts: Callable[[], Mapping[str, Any]],
    finish: Callable[[], None],
) -> FunctionJob:
    """The function or model as one graph (tf.function), waited for in each step."""
    require_inference(name, made.module, str(params["mode"]), "tensorflow")
    compiled, inputs = tf.function(made.module), made.inputs

    def call() -> None:
        compiled(*inputs)
        finish()

    return FunctionJob(
        rank_batch(params),
        call=call,
        outputs=lambda: _on_host(compiled(*inputs)),
        expected=lambda: _on_host(made.module(*inputs)),
        facts=facts,
    )


def _on_host(value: Any) -> List[Any]:
    return [np.asarray(each) for each in tf.nest.flatten(value)]
