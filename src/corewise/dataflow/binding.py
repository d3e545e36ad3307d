"""A captured program tied to its module: live parameters in, outputs out.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.dataflow.capture import Captured
from corewise.dataflow.packs import CannotPack, Packs
from corewise.dataflow.program import Ref


class Bound:
    """Makes the list of values for a call, and the caller's result from it."""

    def __init__(self, captured: Captured, module: torch.nn.Module) -> None:
        self.captured, self.program, self.module = captured, captured.program, module
        self._state = [(value, *_holder(module, name)) for value, name in self.program.state.items()]
        self._outputs = self.program.outputs
        written = set(captured.written)
        self._writes_inputs = bool(written & set(self.program.inputs))
        self._writes = bool(written)
        self._written_state = [n for n, (value, _, _) in enumerate(self._state) if value in written]
        self._places: List[int] = []  # where state lay when its storages were last looked at
        self._forbidden: Set[int] = set()  # storages that inputs must not lie in
        self._state_is_apart = True
        self._packs = Packs(self.program.packs) if self.program.packs else None

    def values(self, leaves: Sequence[Any]) -> List[Any]:
        """Inputs, parameters as they are now, and constants, each in its place."""
        found = self.brought(leaves)
        if self._packs is not None and not self._packs.put(found, at_once=True):
            raise CannotPack("weights cannot be packed as they are now")
        return found

    def steady_values(self, leaves: Sequence[Any]) -> Optional[List[Any]]:
        """The same; None where weights would have to be packed that were others in the last call."""
        found = self.brought(leaves)
        return None if self._packs is not None and not self._packs.put(found, at_once=False) else found

    def forget_packs(self) -> None:
        """Lets go of packed weights until a plan needs them again."""
        if self._packs is not None:
            self._packs.forget()

    def brought(self, leaves: Sequence[Any]) -> List[Any]:
        """The same without packed weights."""
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
        """False when what is written shares memory with other inputs or state, which was not captured."""
        if not self._writes:
            return True
        self._look_at_state()
        storages = [_storage(one) for one in leaves if isinstance(one, torch.Tensor)]
        if self._writes_inputs and len(storages) != len(set(storages)):
            return False
        return self._state_is_apart and self._forbidden.isdisjoint(storages)

    def _look_at_state(self) -> None:
        """Which storages inputs must not share, and whether written state shares any; anew where it moved."""
        tensors = [holder[key] for _, holder, key in self._state] + list(self.program.constants.values())
        places = list(map(torch.Tensor.data_ptr, tensors))
        if places == self._places:
            return
        storages = list(map(_storage, tensors))
        written = [storages[number] for number in self._written_state]
        times = Counter(storages)
        self._state_is_apart = all(times[one] == 1 for one in written)
        self._forbidden = set(storages if self._writes_inputs else written)
        self._places = places

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


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _holder(module: torch.nn.Module, name: str) -> Tuple[Dict[str, Any], str]:
    """The dictionary that holds a parameter or buffer, and its key there."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    held: Dict[str, Any] = owner._parameters if key in owner._parameters else owner._buffers
    return held, key
