"""The ranks of a trial that train together, and how many samples and which learning rate they use.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from corewise.measured.runtimes.base import Infeasible, NoEffect, RankContext
from corewise.measured.runtimes.torch.communication.process_group import start_process_group
from corewise.measured.runtimes.torch.modules.gradient_exchange import (
    GradientExchange,
    choose_backend,
    choose_process_group,
)
from corewise.measured.runtimes.torch.modules.step_timeline import StepTimeline
from corewise.measured.runtimes.torch.settings import Settings

# Executions that run the module as it is. Others trace it.
UNTRACED_EXECUTIONS = ("eager", "fast-kernels")

# The destructor of a gloo group joins gloo's threads while it holds Python's lock. A thread that has run a callback in
# Python needs this lock to end, so the destructor would wait for ever. A rank ends without destructors.
_KEPT_GROUPS: List[Any] = []


class RankGroup:
    """The ranks of one trial that train together; in inference every rank is a separate group."""

    def __init__(self, context: RankContext, settings: Settings) -> None:
        self._device, self._is_traced = settings.device, settings.execution not in UNTRACED_EXECUTIONS
        self.context, self.timeline = context, StepTimeline()
        self.rank, self.num_ranks = (context.rank, context.num_ranks) if settings.training else (0, 1)
        self._exchange: Optional[GradientExchange] = None
        if not self.is_distributed:
            refuse_unused_collectives(settings)
            return
        num_local, num_gpus = context.num_local_ranks, torch.cuda.device_count()
        if self._device.type == "cuda" and num_gpus < num_local:
            raise Infeasible(f"{num_local} data-parallel processes need a GPU each; this machine has {num_gpus}")
        backend = choose_backend(settings.collectives, self._device.type)
        start_process_group(context, choose_process_group(backend))
        self._exchange = GradientExchange(backend, context, self.timeline)

    @property
    def is_distributed(self) -> bool:
        return self.num_ranks > 1

    def read_facts(self) -> Mapping[str, Any]:
        """Return facts that prove what carries the gradients; none if nothing does."""
        return self._exchange.read_facts() if self._exchange is not None else {}

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap the module so that its gradients are averaged over all ranks."""
        if self._exchange is None:
            return module
        return self._exchange.wrap(module, self._device, is_traced=self._is_traced)

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

    def gather(self, values: List[float]) -> List[List[float]]:
        """Return the values of every rank; all pass equally many."""
        if not self.is_distributed:
            return [values]
        own = torch.tensor(values, dtype=torch.float64, device=self._device)
        gathered = [torch.empty_like(own) for _ in range(self.num_ranks)]
        dist.all_gather(gathered, own)
        return [each.tolist() for each in gathered]

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        if self.is_distributed and dist.is_initialized():
            _KEPT_GROUPS.append(dist.group.WORLD)
            dist.destroy_process_group()


def refuse_unused_collectives(settings: Settings) -> None:
    """Raise NoEffect if the trial sets `collectives` although its ranks exchange nothing."""
    if settings.collectives != "default":
        reason = "there is one process" if settings.training else "replicas infer independently of each other"
        raise NoEffect(f"collectives {settings.collectives} has no effect: {reason}")
