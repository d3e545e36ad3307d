"""Backward passes of a module's own, which its operators do not show; gradients of two runs compared.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils import _pytree as pytree

from corewise.dataflow.modes import current_modes
from corewise.dataflow.teams import in_team

_SEED = 7919
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.complex64: 1e-3, torch.complex128: 1e-7}
_COARSE = 5e-2  # half precision
_NOISE = 1e-7  # of the largest gradient of all: what sums that cancel leave over
# What listens to gradients, or keeps what they need elsewhere: activations checkpointed, or moved.
_REGISTERING: Tuple[Tuple[type, str], ...] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
)
_PLAIN: Dict[Tuple[type, str], Any] = {(owner, name): getattr(owner, name) for owner, name in _REGISTERING}

Gradients = Sequence[Optional[torch.Tensor]]


class _Listener(NamedTuple):
    thread: int
    noted: List[str]


_guard = threading.Lock()  # never held while a module runs
_listeners: List[_Listener] = []


@contextlib.contextmanager
def noting_hooks() -> Iterator[List[str]]:
    """A list that grows when this thread, or a branch it runs, hooks gradients or what is saved for them."""
    listener = _Listener(threading.get_ident(), [])
    with _guard:
        if not _listeners:
            for (owner, name), plain in _PLAIN.items():
                setattr(owner, name, _noting(owner, name, plain))
        _listeners.append(listener)
    try:
        yield listener.noted
    finally:
        with _guard:
            _listeners[:] = [one for one in _listeners if one is not listener]
            for (owner, name), plain in _PLAIN.items() if not _listeners else ():
                setattr(owner, name, plain)


def _noting(owner: type, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def register(thing: Any, *args: Any, **kwargs: Any) -> Any:
        for listener in list(_listeners):
            if threading.get_ident() == listener.thread or in_team():
                listener.noted.append(name if owner is torch.Tensor else owner.__name__)
        return plain(thing, *args, **kwargs)

    return register


def own_backward(result: Any, brought: Sequence[torch.Tensor]) -> str:
    """The name of a torch.autograd.Function between these tensors and the result; empty if there is none."""
    seen = {one.grad_fn for one in brought}
    waiting = [one.grad_fn for one in differentiable(result)]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            return type(node).__name__
        waiting += [before for before, _ in node.next_functions]
    return ""


def differentiable(result: Any) -> List[torch.Tensor]:
    """The tensors of a result that have gradients."""
    return [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]


def gradients(result: Any, brought: Sequence[torch.Tensor]) -> Gradients:
    """Those of the tensors brought, for random gradients of the result, equal each time; no hook is run."""
    outputs = differentiable(result)
    if not outputs or not brought:
        return [None] * len(brought)
    generator = torch.Generator().manual_seed(_SEED)
    arriving = [torch.randn(one.shape, dtype=one.dtype, generator=generator) for one in outputs]
    with silent_hooks(brought):
        return torch.autograd.grad(outputs, list(brought), arriving, allow_unused=True)


@contextlib.contextmanager
def silent_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A context in which nobody is told of these tensors' gradients: they are thrown away."""
    kept: List[Tuple[Any, Dict[Any, Any]]] = []
    for tensor in tensors:
        hooks = tensor._backward_hooks
        if hooks:
            kept.append((hooks, dict(hooks)))
            hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.update(before)


def why_gradients_differ(expected: Gradients, got: Gradients) -> str:
    """What differs between the gradients of two runs; empty when nothing does."""
    noise = _NOISE * max([_size(one) for one in expected if one is not None], default=0.0)
    for one, two in zip(expected, got):
        if (one is None) != (two is None):
            return "its operators, replayed, give gradients of other tensors"
        if one is not None and two is not None and not _is_close(one, two, noise):
            return "its operators, replayed, give other gradients"
    return ""


def _is_close(one: torch.Tensor, two: torch.Tensor, noise: float) -> bool:
    if one.layout != two.layout or one.shape != two.shape:
        return False
    if one.is_sparse:
        one, two = one.coalesce(), two.coalesce()
        if not torch.equal(one.indices(), two.indices()):
            return False
        one, two = one.values(), two.values()
    is_cast = current_modes().autocast is not None
    tolerance = _COARSE if is_cast else _TOLERANCE.get(one.dtype, _COARSE)
    return bool(torch.allclose(one, two, rtol=0.0, atol=tolerance * _size(one) + noise, equal_nan=True))


def _size(tensor: torch.Tensor) -> float:
    """The largest of its finite values."""
    found = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    return float(torch.nan_to_num(found.abs(), 0.0, 0.0, 0.0).max()) if found.numel() else 0.0
