"""Shapes of recurrent layers' results without walking through their steps, while a model is being captured.

Measured side: standard library and torch only, Python 3.9. torch's own rule runs every time step on tensors
without data: 20 s for eight LSTMs of 400 steps. Where torch keeps its rules otherwise, that is what happens.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Sequence, Tuple

import torch

_NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_RULES = ("Autograd", "CompositeImplicitAutograd", "Meta")


@contextlib.contextmanager
def quick_shapes() -> Iterator[None]:
    """A context in which the shapes of recurrent layers are known at once."""
    kept = []
    for name in _NAMES:
        operator = getattr(torch.ops.aten, name).input
        rules: Dict[Any, Any] = getattr(operator, "py_kernels", {})
        keys = [getattr(torch._C.DispatchKey, rule) for rule in _RULES]
        if not all(key in rules for key in keys) or not hasattr(operator, "_dispatch_cache"):
            continue
        kept.append((operator, dict(rules)))
        rules.update(dict.fromkeys(keys, _lstm if name == "lstm" else _simple))
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, rules in kept:
            operator.py_kernels.update(rules)
            operator._dispatch_cache.clear()


def shapes_of(operator: Any, x: torch.Tensor, states: Any, *rest: Any) -> Tuple[torch.Tensor, ...]:
    """Tensors of the shapes this recurrent operator gives for arguments like these."""
    rule: Any = _lstm if operator is torch.ops.aten.lstm.input else _simple
    found: Tuple[torch.Tensor, ...] = rule(x, states, *rest)
    return found


def _output(x: torch.Tensor, state: torch.Tensor, bidirectional: bool, batch_first: bool) -> torch.Tensor:
    features = state.shape[-1] * (2 if bidirectional else 1)
    if batch_first:
        return x.new_empty((x.shape[1], x.shape[0], features)).transpose(0, 1)
    return x.new_empty((x.shape[0], x.shape[1], features))


def _lstm(
    x: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *rest: Any
) -> Tuple[torch.Tensor, ...]:
    return (_output(x, states[0], rest[4], rest[5]), *(_like(state) for state in states))


def _simple(
    x: torch.Tensor, state: torch.Tensor, params: Sequence[torch.Tensor], *rest: Any
) -> Tuple[torch.Tensor, ...]:
    return _output(x, state, rest[4], rest[5]), _like(state)


def _like(state: torch.Tensor) -> torch.Tensor:
    return state.new_empty(state.shape)
