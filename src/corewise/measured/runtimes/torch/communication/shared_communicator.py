"""Messages through shared memory among the ranks of a node; what it lacks goes over gloo.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

from corewise.accelerate.collectives.shared_allreduce import DEFAULT_TIMEOUT_S, TYPE_CODES, SharedAllreduce
from corewise.accelerate.unsupported import Unsupported
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.torch.communication.torch_communicator import TorchCommunicator, view_as_tensor

# The operations of shared memory. Kernels may use the others, which go over gloo.
SHARED_OPERATIONS = ("allreduce",)


class SharedCommunicator(TorchCommunicator):
    """Reduces arrays in a segment that the ranks of a node share; between nodes over gloo.

    Raises:
        Infeasible: the ranks cannot share memory; the reason says which one and why.
    """

    def __init__(self, context: RankContext) -> None:
        super().__init__(context, "gloo")
        self.backend = "shared"
        try:
            self._reducer = SharedAllreduce(timeout_s=context.time_limit_s or DEFAULT_TIMEOUT_S)
        except Unsupported as problem:
            super().close()
            raise Infeasible(f"collectives shared: {problem}") from problem
        # The number of calls that gloo carried, by operation.
        self._over_gloo: Dict[str, int] = {}

    def explain_unsupported(self, operation: str) -> str:
        if operation in SHARED_OPERATIONS:
            return ""
        return f"shared memory carries {', '.join(SHARED_OPERATIONS)}, not {operation}; use collectives gloo or mpi"

    def allreduce(self, array: Any) -> None:
        tensor = view_as_tensor(array)
        # Complex numbers are summed by their parts.
        parts = tensor.view(tensor.real.dtype) if tensor.is_complex() else tensor
        if parts.dtype in TYPE_CODES:
            self._reducer.allreduce(parts)
        else:
            self._count_gloo("allreduce")
            super().allreduce(parts)

    def send(self, array: Any, to: int) -> None:
        self._count_gloo("send")
        super().send(array, to)

    def receive(self, array: Any, source: int) -> None:
        self._count_gloo("receive")
        super().receive(array, source)

    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        self._count_gloo("exchange")
        super().exchange(sent, to, received, source)

    def allgather(self, gathered: Any, piece: Any) -> None:
        self._count_gloo("allgather")
        super().allgather(gathered, piece)

    def all_to_all(self, received: Any, sent: Any) -> None:
        self._count_gloo("all_to_all")
        super().all_to_all(received, sent)

    def broadcast(self, array: Any, root: int) -> None:
        self._count_gloo("broadcast")
        super().broadcast(array, root)

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        self._count_gloo("reduce_scatter")
        super().reduce_scatter(piece, array)

    def read_facts(self) -> Mapping[str, Any]:
        return {
            **super().read_facts(),
            "num_shared_memory_nodes": self._reducer.num_nodes,
            "calls_over_gloo": dict(sorted(self._over_gloo.items())),
        }

    def close(self) -> None:
        self._reducer.close()
        super().close()

    def _count_gloo(self, operation: str) -> None:
        self._over_gloo[operation] = self._over_gloo.get(operation, 0) + 1
