"""A captured program tied to its module: live parameters in, outputs out.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.dataflow.capture import Captured
from corewise.dataflow.program import Ref


class Bound:
    """Makes the list of values for a call, and the caller's result from it."""

    def __init__(self, captured: Captured, module: torch.nn.Module) -> None:
        self.captured, self.program, self.module = captured, captured.program, module
        self._state = [(value, *_holder(module, name)) for value, name in self.program.state.items()]
        self._outputs = self.program.outputs
        self._writes_inputs = bool(set(captured.written) & set(self.program.inputs))

    def values(self, leaves: Sequence[Any]) -> List[Any]:
        """Inputs, parameters as they are now, and constants, each in its place."""
        found: List[Any] = [None] * self.program.num_values
        for value, leaf in zip(self.program.inputs, leaves):
            found[value] = leaf
        for value, holder, key in self._state:
            found[value] = holder[key]
        for value, tensor in self.program.constants.items():
            found[value] = tensor
        return found

    def result(self, values: Sequence[Any]) -> Any:
        """What the module would have returned."""
        flat = [values[out.value] if isinstance(out, Ref) else out for out in self._outputs]
        return pytree.tree_unflatten(flat, self.captured.out_spec)

    def may_run(self, leaves: Sequence[Any]) -> bool:
        """False when inputs that are written to share memory in a way that was not captured."""
        if not self._writes_inputs:
            return True
        storages = [one.untyped_storage()._cdata for one in leaves if isinstance(one, torch.Tensor)]
        return len(storages) == len(set(storages))

    @contextlib.contextmanager
    def untouched(self) -> Iterator[None]:
        """A context after which buffers and the generator are as before."""
        written = set(self.captured.written)
        kept = [(holder[key], holder[key].detach().clone()) for v, holder, key in self._state if v in written]
        rng = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(rng)
            with torch.no_grad():
                for tensor, before in kept:
                    tensor.copy_(before)

    def fresh_leaves(self, leaves: Sequence[Any]) -> List[Any]:
        """The inputs, copied where the program writes to them."""
        written = set(self.captured.written)
        return [
            leaf.detach().clone().requires_grad_(leaf.requires_grad)
            if value in written and isinstance(leaf, torch.Tensor)
            else leaf
            for value, leaf in zip(self.program.inputs, leaves)
        ]


def _holder(module: torch.nn.Module, name: str) -> Tuple[Dict[str, Any], str]:
    """The dictionary that holds a parameter or buffer, and its key there."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    held: Dict[str, Any] = owner._parameters if key in owner._parameters else owner._buffers
    return held, key
