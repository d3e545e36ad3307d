"""Detect custom backward passes that operators do not show, and compare the gradients of two runs.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.torch_modes import read_modes
from corewise.accelerate.malleable.execute.thread_teams import is_in_team

_SEED = 7919
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.complex64: 1e-3, torch.complex128: 1e-7}
_HALF_PRECISION_TOLERANCE = 5e-2
# Absolute tolerance relative to the largest gradient: what cancelling sums leave over.
_RELATIVE_NOISE = 1e-7
# Methods that hook gradients or move saved tensors, for example for activation checkpointing.
_HOOK_METHODS: Tuple[Tuple[type, str], ...] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
)
_ORIGINAL_METHODS: Dict[Tuple[type, str], Any] = {(owner, name): getattr(owner, name) for owner, name in _HOOK_METHODS}

Gradients = Sequence[Optional[torch.Tensor]]


class _HookListener(NamedTuple):
    thread: int
    noted: List[str]


# Never held while a module runs.
_guard = threading.Lock()
_listeners: List[_HookListener] = []


@contextlib.contextmanager
def record_hooks() -> Iterator[List[str]]:
    """Yield a list that grows when this thread, or a branch it runs, hooks gradients or saved tensors."""
    listener = _HookListener(threading.get_ident(), [])
    with _guard:
        if not _listeners:
            for (owner, name), plain in _ORIGINAL_METHODS.items():
                setattr(owner, name, _wrap_registration(owner, name, plain))
        _listeners.append(listener)
    try:
        yield listener.noted
    finally:
        with _guard:
            _listeners[:] = [one for one in _listeners if one is not listener]
            for (owner, name), plain in _ORIGINAL_METHODS.items() if not _listeners else ():
                setattr(owner, name, plain)


def _wrap_registration(owner: type, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def register(thing: Any, *args: Any, **kwargs: Any) -> Any:
        for listener in list(_listeners):
            if threading.get_ident() == listener.thread or is_in_team():
                listener.noted.append(name if owner is torch.Tensor else owner.__name__)
        return plain(thing, *args, **kwargs)

    return register


def find_custom_backward(result: Any, inputs: Sequence[torch.Tensor]) -> str:
    """Find a torch.autograd.Function between these tensors and the result; return its name or ""."""
    seen = {tensor.grad_fn for tensor in inputs}
    pending = [tensor.grad_fn for tensor in list_differentiable(result)]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return type(node).__name__
        pending += [previous for previous, _ in node.next_functions]
    return ""


def list_differentiable(result: Any) -> List[torch.Tensor]:
    """List the tensors of a result that have gradients."""
    return [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]


def compute_gradients(result: Any, inputs: Sequence[torch.Tensor]) -> Gradients:
    """Compute gradients for fixed pseudo-random gradients of the result, without running hooks."""
    outputs = list_differentiable(result)
    if not outputs or not inputs:
        return [None] * len(inputs)
    generator = torch.Generator().manual_seed(_SEED)
    arriving = [torch.randn(one.shape, dtype=one.dtype, generator=generator) for one in outputs]
    with suspend_hooks(inputs):
        return torch.autograd.grad(outputs, list(inputs), arriving, allow_unused=True)


@contextlib.contextmanager
def suspend_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Suspend the gradient hooks of these tensors in a context, for gradients that are thrown away."""
    suspended: List[Tuple[Any, Dict[Any, Any]]] = []
    for tensor in tensors:
        hooks = tensor._backward_hooks
        if hooks:
            suspended.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, saved in suspended:
            hooks.update(saved)


def compare_gradients(expected: Gradients, actual: Gradients) -> str:
    """Explain how the gradients of two runs differ; empty if they do not."""
    noise = _RELATIVE_NOISE * max([_find_largest(one) for one in expected if one is not None], default=0.0)
    for one, two in zip(expected, actual):
        if (one is None) != (two is None):
            return "its replayed operators give gradients of other tensors"
        if one is not None and two is not None and not _is_close(one, two, noise):
            return "its replayed operators give other gradients"
    return ""


def _is_close(one: torch.Tensor, two: torch.Tensor, noise: float) -> bool:
    if one.layout != two.layout or one.shape != two.shape:
        return False
    if one.is_sparse:
        one, two = one.coalesce(), two.coalesce()
        if not torch.equal(one.indices(), two.indices()):
            return False
        one, two = one.values(), two.values()
    is_cast = read_modes().autocast is not None
    tolerance = _HALF_PRECISION_TOLERANCE if is_cast else _TOLERANCE.get(one.dtype, _HALF_PRECISION_TOLERANCE)
    return bool(torch.allclose(one, two, rtol=0.0, atol=tolerance * _find_largest(one) + noise, equal_nan=True))


def _find_largest(tensor: torch.Tensor) -> float:
    """Find the largest finite absolute value."""
    values = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return float(torch.nan_to_num(values.abs(), 0.0, 0.0, 0.0).max()) if values.numel() else 0.0
