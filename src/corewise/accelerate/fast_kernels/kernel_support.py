"""Check whether our C++ kernels are available and support the tensors of a call.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from corewise.accelerate.capture.torch_modes import explain_transform, get_autocast_dtype
from corewise.accelerate.kernels.build import NativeBuildError, load_native_module


def has_kernels() -> bool:
    """Return whether our kernels are available; they are built on first use if there is a compiler."""
    try:
        load_native_module()
    except NativeBuildError:
        return False
    return True


def can_use_kernels(*tensors: Any) -> bool:
    """Return whether our kernels support these tensors: float32 on the CPU, no transform, no autocast."""
    if explain_transform() or get_autocast_dtype() is not None:
        return False
    # A model loaded from a file may use the kernels in a process that has not built them yet.
    return all(map(_is_plain, tensors)) and has_kernels()


def _is_plain(each: Any) -> bool:
    """Return whether it is a dense tensor: neither sparse nor batched by a transform."""
    if type(each) not in (Tensor, nn.Parameter) or each.dtype != torch.float32:
        return False
    return bool(torch._C._dispatch_keys(each).has(torch._C.DispatchKey.CPU))
