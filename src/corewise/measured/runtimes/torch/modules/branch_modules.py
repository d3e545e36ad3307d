"""Modules with parallel branches, for the layers of `workloads.models.branch_layers`.

Measured side: standard library and torch only, Python 3.9. All of them can be scripted.
"""

from __future__ import annotations

from typing import Any, Iterable, List

import torch
from torch import Tensor, nn


class BranchesModule(nn.Module):
    """Branches over the same input, with joined outputs.

    With `side_by_side`, and only under TorchScript, they run concurrently on torch's inter-op threads.
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
            for future in running:
                outputs.append(torch.jit.wait(future))  # type: ignore[no-untyped-call]
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


class GatedModule(nn.Module):
    """Experts summed with the weights of a gate; only the `top` experts have a weight."""

    __constants__ = ("top", "is_sparse")

    def __init__(self, gate: nn.Module, experts: nn.Module, top: int, num_experts: int) -> None:
        super().__init__()
        self.gate, self.experts = gate, experts
        self.top, self.is_sparse = top, top < num_experts

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        if self.is_sparse:
            threshold = torch.topk(scores, self.top, dim=-1)[0][..., -1:]
            scores = scores.masked_fill(scores < threshold, float("-inf"))
        weights = torch.softmax(scores, dim=-1).unsqueeze(-1)
        return (self.experts(x) * weights).sum(-2)  # type: ignore[no-any-return]


class AuxiliaryHeadModule(nn.Module):
    """The output of a network and, in training, of an auxiliary head halfway through."""

    __constants__ = ("returns_auxiliary",)

    def __init__(self, trunk: nn.Module, auxiliary: nn.Module, rest: nn.Module) -> None:
        super().__init__()
        self.trunk, self.auxiliary, self.rest = trunk, auxiliary, rest
        self.returns_auxiliary = False

    def forward(self, x: Tensor) -> Any:
        x = self.trunk(x)
        if self.returns_auxiliary:
            auxiliary = self.auxiliary(x)
            return self.rest(x), auxiliary
        return self.rest(x)


class FeatureSliceModule(nn.Module):
    """A slice of the features."""

    __constants__ = ("first", "end")

    def __init__(self, first: int, num: int) -> None:
        super().__init__()
        self.first, self.end = first, first + num

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.first : self.end]
