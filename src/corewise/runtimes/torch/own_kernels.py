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
    return all(map(_is_plain, tensors)) and has_kernel()  # in this process, too: models come from files


def _is_plain(each: Any) -> bool:
    """Whether it is numbers in memory: neither sparse, nor many gradients at once."""
    if type(each) not in (Tensor, nn.Parameter) or each.dtype != torch.float32:
        return False
    return bool(torch._C._dispatch_keys(each).has(torch._C.DispatchKey.CPU))
