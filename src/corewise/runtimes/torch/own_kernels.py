"""Whether kernels of our own are here, and may compute with what a layer is given.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from corewise.dataflow.modes import autocast_dtype, why_torchs_operators
from corewise.dataflow.native.build import CannotBuild, native_module


def has_kernel() -> bool:
    """Whether our kernels are here; they are built on first use, where there is a compiler."""
    try:
        native_module()
    except CannotBuild:
        return False
    return True


def may_take(*tensors: Any) -> bool:
    """Whether our kernels may compute with these: float32 on the CPU, nothing recorded or transformed."""
    if why_torchs_operators() or autocast_dtype() is not None:
        return False
    are_plain = all(
        type(each) in (Tensor, nn.Parameter)
        and each.dtype == torch.float32
        and each.device.type == "cpu"
        and each.layout == torch.strided
        and not torch._C._functorch.is_legacy_batchedtensor(each)  # many gradients at once
        for each in tensors
    )
    return are_plain and has_kernel()  # a model may come from a file into a process that has not built them
