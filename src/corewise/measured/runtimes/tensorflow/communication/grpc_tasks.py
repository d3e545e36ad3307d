"""The ranks of a trial as tasks of a TensorFlow cluster, whose servers pass tensors over gRPC.

Measured side: standard library and tensorflow only, Python 3.9.
"""

from __future__ import annotations

import socket
from typing import Any, Mapping, NoReturn

import tensorflow as tf  # type: ignore[import-untyped]

from corewise.measured.parameters import Collectives, Device, TrialParameters
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.communication.local_sockets import RankLink

JOB = "tasks"
OPERATIONS = ("push_add",)
LOOPBACK = "127.0.0.1"


class GrpcTasks(Communicator):
    """One server of TensorFlow per rank, on one node. It carries tensors that a graph uses on another task.

    TensorFlow has no arrays that a message could overwrite, so this communicator has no operations on arrays.

    Attributes:
        link: shares small values among the ranks.
        targets: the addresses of the servers, by rank.
    """

    backend = "grpc"

    def __init__(self, params: TrialParameters, context: RankContext) -> None:
        if params.collectives not in (Collectives.DEFAULT, Collectives.GRPC):
            raise Infeasible(f"collectives {params.collectives.value}: tensorflow has grpc only")
        if context.num_nodes > 1:
            raise Infeasible("collectives grpc runs on one node")
        if params.device != Device.CPU:
            raise Infeasible("collectives grpc passes arrays in host memory; use device cpu")
        if context.num_ranks < 2:
            raise Infeasible("collectives grpc needs at least two ranks; set processes: 2")
        self.rank, self.num_ranks = context.rank, context.num_ranks
        self.link = RankLink(context, "grpc")
        # All ranks know their ports before the first server starts, so no two ranks choose the same one.
        with socket.socket() as reserved:
            reserved.bind((LOOPBACK, 0))
            self.targets = self.link.share(f"{LOOPBACK}:{reserved.getsockname()[1]}")
        settings = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=params.threads)
        self._server = tf.distribute.Server({JOB: self.targets}, JOB, self.rank, config=settings)
        self.link.share(True)

    def explain_unsupported(self, operation: str) -> str:
        return "" if operation in OPERATIONS else f"collectives grpc has {', '.join(OPERATIONS)}, not {operation}"

    def agree(self, flag: bool) -> bool:
        return all(self.link.share(bool(flag)))

    def barrier(self) -> None:
        self.link.share(True)

    def read_facts(self) -> Mapping[str, Any]:
        return {"collectives_backend": self.backend, "grpc_servers": list(self.targets)}

    def close(self) -> None:
        # A server ends with its process: TensorFlow cannot stop it.
        self.link.close()

    def send(self, array: Any, to: int) -> None:
        self._refuse("send")

    def receive(self, array: Any, source: int) -> None:
        self._refuse("receive")

    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        self._refuse("exchange")

    def allreduce(self, array: Any) -> None:
        self._refuse("allreduce")

    def allgather(self, gathered: Any, piece: Any) -> None:
        self._refuse("allgather")

    def all_to_all(self, received: Any, sent: Any) -> None:
        self._refuse("all_to_all")

    def broadcast(self, array: Any, root: int) -> None:
        self._refuse("broadcast")

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        self._refuse("reduce_scatter")

    def _refuse(self, operation: str) -> NoReturn:
        raise Infeasible(self.explain_unsupported(operation))
