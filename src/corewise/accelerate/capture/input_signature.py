"""Identify inputs and modes for which one captured program is valid.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Hashable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.torch_modes import read_modes


@dataclass(frozen=True)
class InputSignature:
    """Inputs, modes and module state for which one program is valid."""

    # The nesting of the inputs, and a description of each leaf.
    inputs: Tuple[Hashable, Tuple[Any, ...]]
    grad: bool
    autocast: Optional[torch.dtype]
    # The default type of tensors that forward creates.
    default_dtype: torch.dtype
    # Training flags, and types and devices, of the module.
    state: Tuple[bytes, Hashable]

    @classmethod
    def from_inputs(
        cls, leaves: Sequence[Any], nesting: Hashable, state: Tuple[bytes, Hashable]
    ) -> Optional[InputSignature]:
        """Build the signature of these inputs now; None for unsupported inputs."""
        descriptions: List[Hashable] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if leaf.device.type != "cpu" or leaf.layout != torch.strided or type(leaf) not in _TENSOR_TYPES:
                    return None
                descriptions.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
            elif leaf is None or isinstance(leaf, _PLAIN_TYPES):
                # As text, -0.0 differs from 0.0 and nan equals nan.
                descriptions.append((type(leaf), repr(leaf)))
            else:
                return None
        modes = read_modes()
        return cls((nesting, tuple(descriptions)), modes.grad, modes.autocast, torch.get_default_dtype(), state)

    def describe(self) -> str:
        """Describe the signature for people."""
        _, leaves = self.inputs
        shapes = [
            f"{'×'.join(map(str, leaf[0])) or 'scalar'} {str(leaf[2]).rpartition('.')[2]}" if len(leaf) > 2 else leaf[1]
            for leaf in leaves
        ]
        flags, _ = self.state
        mode = "training" if any(flags) else "evaluating"
        gradients = "with gradients" if self.grad else "without gradients"
        autocast = f", autocast {str(self.autocast).rpartition('.')[2]}" if self.autocast else ""
        return f"inputs {', '.join(shapes) or 'none'}, {mode}, {gradients}{autocast}"


def explain_unsupported_inputs(leaves: Sequence[Any]) -> str:
    """Explain why inputs are unsupported; empty if they are supported."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if leaf.device.type != "cpu":
                return f"an input is on {leaf.device.type}"
            if leaf.layout != torch.strided:
                return f"an input's layout is {str(leaf.layout).rpartition('.')[2]}"
            if type(leaf) not in _TENSOR_TYPES:
                return f"an input is a {type(leaf).__name__}, not a plain tensor"
        elif leaf is not None and not isinstance(leaf, _PLAIN_TYPES):
            return f"an input holds a {type(leaf).__name__}, which is neither a tensor nor a plain value"
    return ""


_TENSOR_TYPES = (torch.Tensor, nn.Parameter)
_PLAIN_TYPES = (bool, int, float, str, torch.dtype)


def flatten_inputs(args: Tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tuple[Sequence[Any], Hashable]:
    """Flatten the inputs; return the leaves and their nesting in hashable form."""
    # Most calls take this short path; pytree is slower.
    if not kwargs and all(type(one) in _TENSOR_TYPES for one in args):
        return args, len(args)
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    return leaves, str(spec)
