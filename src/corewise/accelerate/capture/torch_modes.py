"""Read and enter the modes that torch keeps per thread: grad, inference, autocast.

Measured side: standard library and torch only, Python 3.9. A worker thread must take over those of its
caller.
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
    # The type that operators are cast to, or None without autocast.
    autocast: Optional[torch.dtype]

    def enter(self) -> ContextManager[Any]:
        """Return a context in which a worker's operators run as the caller's would; leaves grad mode set."""
        torch.set_grad_enabled(self.grad)
        if not self.inference and self.autocast is None:
            return _NO_CONTEXT
        stack = contextlib.ExitStack()
        if self.inference:
            stack.enter_context(torch.inference_mode())
        if self.autocast is not None:
            # The cache of cast weights belongs to the caller; workers would clear it at other times.
            stack.enter_context(torch.autocast("cpu", dtype=self.autocast, cache_enabled=False))
        return stack


_NO_CONTEXT: ContextManager[Any] = contextlib.nullcontext()


def read_modes() -> Modes:
    """Read the modes of the calling thread."""
    return Modes(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), get_autocast_dtype())


def get_autocast_dtype() -> Optional[torch.dtype]:
    """Return the type that operators on the CPU are cast to, or None without autocast."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def explain_interception() -> str:
    """Explain what intercepts this thread's operators (a transform, a tracer); empty if nothing does."""
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return "a mode of torch intercepts its operators"
    reason = explain_transform()
    if reason:
        return reason
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is not None and top(False) is not None:
        return "hooks on saved tensors are active"
    return ""


def explain_transform() -> str:
    """Explain why all operators must be known to torch with derivatives; empty if they need not be."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "it is being compiled or traced"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode gradients are computed (torch.autograd.forward_ad)"
    return ""
