"""Inputs and modes for which one program is right, known by their kind.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from corewise.dataflow.modes import current_modes


@dataclass(frozen=True)
class Kind:
    """Inputs, modes and module states for which one program is right."""

    inputs: Tuple[Hashable, Tuple[Any, ...]]  # how they are nested, and what each leaf is
    grad: bool
    autocast: Optional[torch.dtype]
    default_dtype: torch.dtype  # of numbers that forward makes tensors of
    state: Tuple[bytes, Hashable]  # of the module: training flags; types and devices

    @classmethod
    def of(cls, leaves: Sequence[Any], form: Hashable, state: Tuple[bytes, Hashable]) -> Optional[Kind]:
        """The kind of these inputs now; None when a program cannot be known by them."""
        described: List[Hashable] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type != "cpu" or leaf.layout != torch.strided or type(leaf) not in _TENSORS:
                    return None
                described.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
            elif leaf is None or isinstance(leaf, _PLAIN):
                described.append((type(leaf), repr(leaf)))  # as text, where -0.0 is not 0.0 and nan is nan
            else:
                return None
        modes = current_modes()
        return cls((form, tuple(described)), modes.grad, modes.autocast, torch.get_default_dtype(), state)

    def words(self) -> str:
        """For people: what kind this is."""
        _, leaves = self.inputs
        shapes = [
            f"{'×'.join(map(str, one[0])) or 'scalar'} {str(one[2]).rpartition('.')[2]}"
            if len(one) > 2
            else one[1]
            for one in leaves
        ]
        flags, _ = self.state
        mode = "training" if any(flags) else "evaluating"
        grads = "with gradients" if self.grad else "without gradients"
        cast = f", autocast {str(self.autocast).rpartition('.')[2]}" if self.autocast else ""
        return f"inputs {', '.join(shapes) or 'none'}, {mode}, {grads}{cast}"


def why_unknown(leaves: Sequence[Any]) -> str:
    """Why inputs are of no kind."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type != "cpu":
                return f"an input is on {leaf.device.type}"
            if leaf.layout != torch.strided:
                return f"an input's layout is {str(leaf.layout).rpartition('.')[2]}"
            if type(leaf) not in _TENSORS:
                return f"an input is a {type(leaf).__name__}, not a plain tensor"
        elif leaf is not None and not isinstance(leaf, _PLAIN):
            return f"an input holds a {type(leaf).__name__}, which is neither a tensor nor a plain value"
    return ""


_TENSORS = (torch.Tensor, nn.Parameter)
_PLAIN = (bool, int, float, str, torch.dtype)


def flattened(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tuple[Sequence[Any], Hashable]:
    """The inputs one by one, and how they are nested, as something that can be compared and hashed."""
    if not kwargs and all(type(one) in _TENSORS for one in args):  # most calls; the rest takes longer
        return args, len(args)
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    return leaves, str(spec)
