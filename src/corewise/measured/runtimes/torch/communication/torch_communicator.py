"""Messages through torch's process group: gloo in host memory, nccl among GPUs.

Measured side: standard library, numpy and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from corewise.measured.runtimes.base import RankContext
from corewise.measured.runtimes.communication.communicator import Communicator
from corewise.measured.runtimes.torch.communication.process_group import start_process_group


class TorchCommunicator(Communicator):
    """Passes numpy arrays and tensors through the default process group, which it starts."""

    def __init__(self, context: RankContext, backend: str = "gloo") -> None:
        start_process_group(context, backend)
        self.backend = backend
        self.rank, self.num_ranks = context.rank, context.num_ranks
        self._on_gpu = backend == "nccl"

    def send(self, array: Any, to: int) -> None:
        dist.send(view_as_tensor(array), to)
        self._finish()

    def receive(self, array: Any, source: int) -> None:
        dist.recv(view_as_tensor(array), source)
        self._finish()

    def exchange(self, sent: Any, to: int, received: Any, source: int) -> None:
        operations = [
            dist.P2POp(dist.isend, view_as_tensor(sent), to),
            dist.P2POp(dist.irecv, view_as_tensor(received), source),
        ]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        self._finish()

    def allreduce(self, array: Any) -> None:
        dist.all_reduce(view_as_tensor(array))
        self._finish()

    def allgather(self, gathered: Any, piece: Any) -> None:
        dist.all_gather(self._cut(gathered), view_as_tensor(piece).view(-1))
        self._finish()

    def all_to_all(self, received: Any, sent: Any) -> None:
        dist.all_to_all_single(view_as_tensor(received).view(-1), view_as_tensor(sent).view(-1))
        self._finish()

    def broadcast(self, array: Any, root: int) -> None:
        dist.broadcast(view_as_tensor(array), root)
        self._finish()

    def reduce_scatter(self, piece: Any, array: Any) -> None:
        dist.reduce_scatter(view_as_tensor(piece).view(-1), self._cut(array))
        self._finish()

    def barrier(self) -> None:
        dist.barrier()

    def agree(self, flag: bool) -> bool:
        device = "cuda" if self._on_gpu else "cpu"
        votes = torch.tensor([float(flag)], device=device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return bool(votes.item())

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def _cut(self, array: Any) -> List[Tensor]:
        return list(view_as_tensor(array).view(-1).chunk(self.num_ranks))

    def _finish(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def view_as_tensor(array: Any) -> Tensor:
    """View a contiguous numpy array as a tensor without copying it; return tensors unchanged."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else array
