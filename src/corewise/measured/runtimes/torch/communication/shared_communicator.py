"""Messages through shared memory among the ranks of a node; what it lacks goes over gloo.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

import torch
from torch import Tensor

from corewise.accelerate.collectives.shared_allreduce import DEFAULT_TIMEOUT_S, TYPE_CODES
from corewise.accelerate.collectives.shared_collectives import SharedCollectives
from corewise.accelerate.unsupported import Unsupported
from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.communication.communicator import list_shared_operations
from corewise.measured.runtimes.torch.communication.torch_communicator import TorchCommunicator, view_as_tensor


class SharedCommunicator(TorchCommunicator):
    """Runs collectives in a segment that the ranks of a node share; sums of several nodes meet over gloo.

    Kernels may use operations and types that shared memory lacks. Those go over gloo and are counted.

    Raises:
        Infeasible: the ranks cannot share memory; the reason says which one and why.
    """

    def __init__(self, context: RankContext) -> None:
        super().__init__(context, "gloo")
        self.backend = "shared"
        try:
            self._shared = SharedCollectives(timeout_s=context.time_limit_s or DEFAULT_TIMEOUT_S)
        except Unsupported as problem:
            super().close()
            raise Infeasible(f"collectives shared: {problem}") from problem
        self._is_one_node = self._shared.num_nodes == 1
        # The number of calls that gloo carried, by operation.
        self._over_gloo: Dict[str, int] = {}

    def explain_unsupported(self, operation: str) -> str:
        carried = list_shared_operations(self._shared.num_nodes)
        if operation in carried:
            return ""
        place = "shared memory" if self._is_one_node else f"shared memory on {self._shared.num_nodes} nodes"
        return f"{place} carries {', '.join(carried)}, not {operation}; use collectives gloo or mpi"

    def allreduce(self, array: Any) -> None:
        parts = view_as_real(array)
        if parts.dtype in TYPE_CODES:
            self._shared.allreduce(parts)
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
        if self._is_one_node:
            self._shared.allgather(view_as_tensor(gathered), view_as_tensor(piece))
        else:
            self._count_gloo("allgather")
            super().allgather(gathered, piece)

    def all_to_all(self, received: Any, sent: Any) -> None:
        if self._is_one_node:
            self._shared.all_to_all(view_as_tensor(received), view_as_tensor(sent))
        else:
            self._count_gloo("all_to_all")
            super().all_to_all(received, sent)

    def broadcast(self, array: Any, root: int) -> None:
        if self._is_one_node:
            self._shared.broadcast(view_as_tensor(array), root)
        else:
            self._count_gloo("broadcast")
            super().broadcast(array, root)

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        parts = view_as_real(array)
        if self._is_one_node and parts.dtype in TYPE_CODES:
            self._shared.reduce_scatter(view_as_real(piece), parts)
        else:
            self._count_gloo("reduce_scatter")
            super().reduce_scatter(piece, array)

    def barrier(self) -> None:
        self.agree(True)

    def agree(self, flag: bool) -> bool:
        votes = torch.tensor([float(flag)])
        self._shared.allreduce(votes)
        return bool(votes.item() == self.num_ranks)

    def read_facts(self) -> Mapping[str, Any]:
        return {
            **super().read_facts(),
            "num_shared_memory_nodes": self._shared.num_nodes,
            "calls_over_gloo": dict(sorted(self._over_gloo.items())),
        }

    def close(self) -> None:
        self._shared.close()
        super().close()

    def _count_gloo(self, operation: str) -> None:
        self._over_gloo[operation] = self._over_gloo.get(operation, 0) + 1


def view_as_real(array: Any) -> Tensor:
    """View an array as a tensor; complex numbers are summed by their parts."""
    tensor = view_as_tensor(array)
    return tensor.view(tensor.real.dtype) if tensor.is_complex() else tensor
