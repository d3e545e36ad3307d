"""What torch keeps for each thread and a worker must take over from its caller: grad, inference, autocast.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ContextManager, Optional

import torch


@dataclass(frozen=True)
class Modes:
    """A thread's modes that change what operators do; equal modes run the same program."""

    grad: bool
    inference: bool
    autocast: Optional[torch.dtype]  # None: off

    def entered(self) -> ContextManager[Any]:
        """A context in which a worker's operators run as the caller's would; leaves grad mode set."""
        torch.set_grad_enabled(self.grad)
        if not self.inference and self.autocast is None:
            return _NOTHING
        stack = contextlib.ExitStack()
        if self.inference:
            stack.enter_context(torch.inference_mode())
        if self.autocast is not None:
            # The cache of cast weights is the caller's; threads would empty it at their own times.
            stack.enter_context(torch.autocast("cpu", dtype=self.autocast, cache_enabled=False))
        return stack


_NOTHING: ContextManager[Any] = contextlib.nullcontext()


def current_modes() -> Modes:
    """The calling thread's."""
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_dtype())


def autocast_dtype() -> Optional[torch.dtype]:
    """What operators on the CPU are cast to; None where they are not."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None  # before torch 2.4


def runs_under_others_control() -> str:
    """Why this thread's operators are not its own now (a transform, a tracer); empty when they are."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a mode of torch is watching its operators"
    needed = why_torchs_operators()
    if needed:
        return needed
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is not None and top(False) is not None:
        return "hooks on saved tensors are active"
    return ""


def why_torchs_operators() -> str:
    """Why operators must be such as torch knows all about, derivatives included; empty when they need not."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "it is being compiled or traced"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "gradients are computed forwards (torch.autograd.forward_ad)"
    return ""
