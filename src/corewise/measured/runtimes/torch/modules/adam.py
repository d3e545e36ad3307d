"""Adam and AdamW on the CPU, with torch's fused operator where it exists.

torch's optimizers import torch's compiler on first use, which costs a second in every forked trial.
Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Iterable, Sequence

import torch
from torch import Tensor, nn

# The values of Kingma and Ba, which are torch's defaults.
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# torch's default for AdamW, from Loshchilov and Hutter.
WEIGHT_DECAY = 0.01


class CpuAdam:
    """Adam for the parameters that have gradients; with `decoupled_decay` it is AdamW.

    The fused operator reads and writes every value once. On torch without it (before 2.4), each parameter is
    updated by plain operators.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, *, decoupled_decay: bool) -> None:
        self._parameters = list(parameters)
        self._lr, self._decay = lr, WEIGHT_DECAY if decoupled_decay else 0.0
        self._means = [torch.zeros_like(p) for p in self._parameters]
        self._squares = [torch.zeros_like(p) for p in self._parameters]
        self._num_steps = torch.zeros(())
        self.is_fused = has_fused_operator()

    def zero_grad(self) -> None:
        """Free the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        self._num_steps += 1
        rows = [row for row in zip(self._parameters, self._means, self._squares) if row[0].grad is not None]
        if not rows:
            return
        if not self.is_fused:
            for parameter, mean, square in rows:
                self._update(parameter, mean, square)
            return
        parameters, means, squares = (list(column) for column in zip(*rows))
        gradients = [p.grad for p in parameters]
        _run_fused(parameters, gradients, means, squares, self._num_steps, self._lr, self._decay)

    def _update(self, parameter: nn.Parameter, mean: Tensor, square: Tensor) -> None:
        gradient, num_steps = parameter.grad, float(self._num_steps)
        assert gradient is not None
        if self._decay:
            parameter.mul_(1 - self._lr * self._decay)
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        scale = (square / (1 - BETA2**num_steps)).sqrt_().add_(EPSILON)
        parameter.addcdiv_(mean, scale, value=-self._lr / (1 - BETA1**num_steps))


def has_fused_operator() -> bool:
    """Return whether torch has the fused operator for the CPU; from 2.0 to 2.3 it was for GPUs only."""
    weight, gradient, mean, square = ([torch.ones(1)] for _ in range(4))
    try:
        _run_fused(weight, gradient, mean, square, torch.ones(()), 0.0, 0.0)
    except (AttributeError, RuntimeError):
        return False
    return True


def _run_fused(
    parameters: Sequence[Tensor],
    gradients: Sequence[Any],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    num_steps: Tensor,
    lr: float,
    decay: float,
) -> None:
    """Update all parameters at once. Adam without decay and AdamW differ only in the decay."""
    torch._fused_adamw_(
        list(parameters),
        list(gradients),
        list(means),
        list(squares),
        [],
        [num_steps] * len(parameters),
        lr=lr,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=decay,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )
