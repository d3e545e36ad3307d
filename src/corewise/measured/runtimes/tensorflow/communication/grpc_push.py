"""Push a vector from one TensorFlow task to another over gRPC, and add it there.

Measured side: standard library, numpy and tensorflow only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.runtimes.base import Check
from corewise.measured.runtimes.tensorflow.communication.grpc_tasks import JOB, GrpcTasks
from corewise.measured.workloads.kernels.communication import (
    ITEM_BYTES,
    draw_array,
    draw_seed,
    sum_arrays,
    time_steps,
    wait_idle,
)
from corewise.measured.workloads.kernels.kernel import KernelRun

TOLERANCE = 2.0**-22


class GrpcPushRun(KernelRun):
    """The vector is a variable of the first task, the sum one of the last; the first task runs each step.

    A step ends when the last task has added the vector. The result is not fetched.
    """

    def __init__(self, tasks: GrpcTasks, num_elements: int, num_calls: int) -> None:
        self._tasks, self._num_elements, self._num_calls = tasks, num_elements, num_calls
        self._idle_s = 0.0
        self._session: Any = None
        if tasks.rank == 0:
            self._build_graph()

    def step(self) -> None:
        if self._session is None:
            wait_idle(self._idle_s)
            return
        for _ in range(self._num_calls):
            self._session.run(self._push)

    def check(self) -> Check:
        """Compare the sum on the last task with numpy's in float64, from fresh random numbers."""
        error, step_s = 0.0, 0.0
        if self._session is not None:
            pushed, target = (draw_array(draw_seed(), self._num_elements) for _ in range(2))
            self._assign(pushed, target)
            self._session.run(self._push)
            expected, scale = sum_arrays([pushed, target])
            error = float(np.max(np.abs(self._session.run(self._sum) - expected) / scale))
            zeros = np.zeros(self._num_elements, np.float32)
            self._assign(zeros, zeros)
            step_s = time_steps(self.step)
        error, step_s = self._tasks.link.share([error, step_s])[0]
        self._idle_s = step_s / 2.0
        return Check(error, TOLERANCE, f"all {self._num_elements} elements in float64")

    def read_facts(self) -> Mapping[str, Any]:
        takes_part = self._tasks.rank in (0, self._tasks.num_ranks - 1)
        return {"message_bytes": self._num_elements * ITEM_BYTES, "takes_part": takes_part}

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _build_graph(self) -> None:
        classic = tf.compat.v1
        graph = tf.Graph()
        with graph.as_default():
            self._fed = classic.placeholder(tf.float32, [self._num_elements])
            pushed = self._place_variable("pushed", 0)
            self._sum = self._place_variable("sum", self._tasks.num_ranks - 1)
            self._assignments = [classic.assign(each, self._fed).op for each in (pushed, self._sum)]
            with tf.device(self._sum.device):
                self._push = classic.assign_add(self._sum, pushed).op
        self._session = classic.Session(f"grpc://{self._tasks.targets[0]}", graph)

    def _place_variable(self, name: str, task: int) -> Any:
        with tf.device(f"/job:{JOB}/task:{task}/cpu:0"):
            return tf.compat.v1.get_variable(
                name, [self._num_elements], tf.float32, tf.compat.v1.zeros_initializer(), use_resource=False
            )

    def _assign(self, pushed: Any, target: Any) -> None:
        for assignment, values in zip(self._assignments, (pushed, target)):
            self._session.run(assignment, {self._fed: values})
