"""Ranks that train together: gradients averaged over gloo, or nccl between GPUs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from corewise.runtimes.base import Infeasible, RankContext
from corewise.runtimes.torch.settings import Settings

RENDEZVOUS_FILE = "process-group"


class RankGroup:
    """The ranks of one trial; where they do not train together, each is a group of its own."""

    def __init__(self, context: RankContext, settings: Settings) -> None:
        device = self._device = settings.device
        self.context = context
        self.rank, self.num_ranks = (context.rank, context.num_ranks) if settings.training else (0, 1)
        if not self.together:
            return
        if device.type == "cuda" and torch.cuda.device_count() < self.num_ranks:
            num_gpus = torch.cuda.device_count()
            raise Infeasible(
                f"{self.num_ranks} processes that train together need a GPU each; here are {num_gpus}"
            )
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this node
        store = dist.FileStore(  # type: ignore[attr-defined]
            os.path.join(context.rendezvous, RENDEZVOUS_FILE), self.num_ranks
        )
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.num_ranks)

    @property
    def together(self) -> bool:
        return self.num_ranks > 1

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module with its gradients averaged over all ranks."""
        if not self.together:
            return module
        return DistributedDataParallel(
            module, device_ids=[self._device] if self._device.type == "cuda" else None
        )

    @property
    def loss_weight(self) -> float:
        """A weight of this rank's own; over all ranks they average to one, so a missing average shows."""
        return 2 * (self.rank + 1) / (self.num_ranks + 1)

    def agree(self, flag: bool) -> bool:
        """True when every rank says True."""
        if not self.together:
            return flag
        votes = torch.tensor([float(flag)], device=self._device)
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
        return bool(votes.item())

    def shared(self, value: Any) -> Any:
        """The first rank's tensor, on every rank; anything else as it is."""
        if not self.together or not isinstance(value, Tensor):
            return value
        copied = value.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(copied, src=0)
        return copied

    def close(self) -> None:
        if self.together and dist.is_initialized():
            dist.destroy_process_group()
