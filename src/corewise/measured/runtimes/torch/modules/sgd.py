"""Stochastic gradient descent with momentum, with the same operators as torch.optim.SGD on the CPU.

torch's optimizer imports torch's compiler on first use, which costs a second in every forked trial.
Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Iterable, Optional

import torch
from torch import Tensor, nn


class CpuSgd:
    """SGD with momentum, one parameter after another."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        self._parameters = list(parameters)
        self._lr, self._momentum = lr, momentum
        self._velocities: list[Optional[Tensor]] = [None] * len(self._parameters)

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                continue
            velocity = self._velocities[index]
            if velocity is None:
                velocity = self._velocities[index] = parameter.grad.clone()
            else:
                velocity.mul_(self._momentum).add_(parameter.grad)
            parameter.add_(velocity, alpha=-self._lr)
