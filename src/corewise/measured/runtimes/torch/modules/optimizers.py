"""Choose the optimizer of a training.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import nn

from corewise.measured.parameters import Optimizer, TrialParameters
from corewise.measured.runtimes.torch.modules.adam import CpuAdam
from corewise.measured.runtimes.torch.modules.sgd import CpuSgd
from corewise.measured.runtimes.torch.settings import Settings
from corewise.measured.runtimes.trial_params import compute_learning_rate

MOMENTUM = 0.9
# As in Parés et al., "Size and shape matter", for Adam. The models' own learning rates are for SGD.
ADAM_LEARNING_RATE = 1e-4


def build_optimizer(parameters: Sequence[nn.Parameter], settings: Settings, learning_rate: float) -> Any:
    """Build the trial's optimizer; on a GPU it is torch's, on the CPU ours with the same operators."""
    lr, on_gpu = learning_rate, settings.device.type == "cuda"
    if settings.optimizer == "sgd":
        if on_gpu:
            return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM)
        return CpuSgd(parameters, lr=lr, momentum=MOMENTUM)
    is_adamw = settings.optimizer == "adamw"
    if on_gpu:
        return (torch.optim.AdamW if is_adamw else torch.optim.Adam)(parameters, lr=lr, fused=True)
    return CpuAdam(parameters, lr=lr, decoupled_decay=is_adamw)


def choose_learning_rate(params: TrialParameters, sgd_learning_rate: float) -> float:
    """Return the learning rate of the trial's optimizer, scaled by its rule."""
    base = sgd_learning_rate if params.optimizer == Optimizer.SGD else ADAM_LEARNING_RATE
    return compute_learning_rate(params, base)
