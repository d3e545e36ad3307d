"""Modules of described layers with several paths through them.

Measured side: standard library and torch only, Python 3.9. All of them can be scripted.
"""

from __future__ import annotations

from typing import Any, Iterable, List

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Modules over the same input, their outputs joined as described in corewise.workloads.branch_layers.

    Where asked, and under TorchScript only, they run side by side on torch's inter-op threads.
    """

    __constants__ = ("join", "side_by_side")

    def __init__(self, branches: Iterable[nn.Module], join: str) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.join, self.side_by_side = join, False

    def forward(self, x: Tensor) -> Tensor:
        outputs: List[Tensor] = []
        if self.side_by_side and torch.jit.is_scripting():  # type: ignore[attr-defined]
            running: List[torch.jit.Future[Tensor]] = []
            for branch in self.branches:
                running.append(torch.jit.fork(branch, x))  # type: ignore[no-untyped-call]
            for one in running:
                outputs.append(torch.jit.wait(one))  # type: ignore[no-untyped-call]
        else:
            for branch in self.branches:
                outputs.append(branch(x))
        if self.join == "sum":
            return torch.stack(outputs).sum(0)
        if self.join == "stack":
            return torch.stack(outputs, dim=-2)
        if self.join == "dot":
            return (outputs[0] * outputs[1]).sum(-1, keepdim=True)
        return torch.cat(outputs, dim=1 if self.join == "channels" else -1)


class Gated(nn.Module):
    """Experts added up with the weights of a gate; those beyond the best few weigh nothing."""

    __constants__ = ("top", "chooses")

    def __init__(self, gate: nn.Module, experts: nn.Module, top: int, num_experts: int) -> None:
        super().__init__()
        self.gate, self.experts = gate, experts
        self.top, self.chooses = top, top < num_experts

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        if self.chooses:
            least = torch.topk(scores, self.top, dim=-1)[0][..., -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        weights = torch.softmax(scores, dim=-1).unsqueeze(-1)
        return (self.experts(x) * weights).sum(-2)  # type: ignore[no-any-return]


class WithAuxiliary(nn.Module):
    """The output of a network and, where it is built for training, that of a head halfway through."""

    __constants__ = ("asks_auxiliary",)

    def __init__(self, trunk: nn.Module, auxiliary: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.trunk, self.auxiliary, self.rest = trunk, auxiliary, rest
        self.asks_auxiliary = False

    def forward(self, x: Tensor) -> Any:
        x = self.trunk(x)
        if self.asks_auxiliary:
            beside = self.auxiliary(x)
            return self.rest(x), beside
        return self.rest(x)


class Part(nn.Module):
    """Some of the features."""

    __constants__ = ("first", "end")

    def __init__(self, first: int, num: int) -> None:
        super().__init__()
        self.first, self.end = first, first + num

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.first : self.end]
