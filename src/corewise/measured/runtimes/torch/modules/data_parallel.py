"""Data-parallel training: gradients averaged with gloo on CPUs, with nccl on GPUs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from corewise.measured.runtimes.base import Infeasible, RankContext
from corewise.measured.runtimes.torch.communication.process_group import start_process_group
from corewise.measured.runtimes.torch.settings import Settings


class RankGroup:
    """The ranks of one trial that train together; in inference every rank is a separate group."""

    def __init__(self, context: RankContext, settings: Settings) -> None:
        device = self._device = settings.device
        self.context = context
        self.rank, self.num_ranks = (context.rank, context.num_ranks) if settings.training else (0, 1)
        if not self.is_distributed:
            return
        if device.type == "cuda" and torch.cuda.device_count() < self.num_ranks:
            num_gpus = torch.cuda.device_count()
            raise Infeasible(f"{self.num_ranks} data-parallel processes need a GPU each; this machine has {num_gpus}")
        start_process_group(context, "nccl" if device.type == "cuda" else "gloo")

    @property
    def is_distributed(self) -> bool:
        return self.num_ranks > 1

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap the module so that its gradients are averaged over all ranks."""
        if not self.is_distributed:
            return module
        return DistributedDataParallel(module, device_ids=[self._device] if self._device.type == "cuda" else None)

    @property
    def loss_weight(self) -> float:
        """A weight that differs between ranks and averages to one, which reveals missing averaging."""
        return 2 * (self.rank + 1) / (self.num_ranks + 1)

    def agree(self, flag: bool) -> bool:
        """Return whether the flag is True on every rank."""
        if not self.is_distributed:
            return flag
        votes = torch.tensor([float(flag)], device=self._device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return bool(votes.item())

    def share_from_first_rank(self, value: Any) -> Any:
        """Broadcast the first rank's tensor to every rank; return other values unchanged."""
        if not self.is_distributed or not isinstance(value, Tensor):
            return value
        copied = value.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(copied, src=0)
        return copied

    def close(self) -> None:
        if self.is_distributed and dist.is_initialized():
            dist.destroy_process_group()
