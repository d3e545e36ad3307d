"""Bind a captured program to its module: live parameters in, results out.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch.utils import _pytree as pytree

from corewise.accelerate.capture.expanded_results import has_objects, rebuild_objects
from corewise.accelerate.capture.program import Ref
from corewise.accelerate.capture.weight_packing import PackingError
from corewise.accelerate.malleable.capture.module_capture import CapturedProgram
from corewise.accelerate.malleable.execute.packed_weights import PackedWeights


class BoundProgram:
    """Builds the list of values for a call, and the caller's result from it."""

    def __init__(self, captured: CapturedProgram, module: torch.nn.Module) -> None:
        self.captured, self.program, self.module = captured, captured.program, module
        self._state = [(value, *_find_holder(module, name)) for value, name in self.program.state.items()]
        self._outputs = self.program.outputs
        self._has_objects = has_objects(captured.out_spec)
        written = set(captured.written_values)
        self._writes_inputs = bool(written & set(self.program.inputs))
        self._writes = bool(written)
        self._written_state = [n for n, (value, _, _) in enumerate(self._state) if value in written]
        # Addresses of state tensors at the last check of their storages.
        self._addresses: List[int] = []
        # Storages that inputs must not share.
        self._forbidden_storages: Set[int] = set()
        self._state_is_apart = True
        self._packs = PackedWeights(self.program.packs) if self.program.packs else None

    def collect_values(self, leaves: Sequence[Any]) -> List[Any]:
        """Collect inputs, current parameters, constants and packed weights; may raise PackingError."""
        values = self.collect_unpacked_values(leaves)
        if self._packs is not None and not self._packs.fill_values(values, at_once=True):
            raise PackingError("the current weights cannot be packed")
        return values

    def collect_steady_values(self, leaves: Sequence[Any]) -> Optional[List[Any]]:
        """Collect the same; None where weights changed since the last call and would have to be packed."""
        values = self.collect_unpacked_values(leaves)
        return None if self._packs is not None and not self._packs.fill_values(values, at_once=False) else values

    def drop_packs(self) -> None:
        """Free packed weights until a plan needs them again."""
        if self._packs is not None:
            self._packs.drop()

    def collect_unpacked_values(self, leaves: Sequence[Any]) -> List[Any]:
        """Collect the same without packed weights."""
        values: List[Any] = [None] * self.program.num_values
        for value, leaf in zip(self.program.inputs, leaves):
            values[value] = leaf
        for value, holder, key in self._state:
            values[value] = holder[key]
        for value, tensor in self.program.constants.items():
            values[value] = tensor
        return values

    def build_result(self, values: Sequence[Any]) -> Any:
        """Build what the module would have returned."""
        flat = [values[out.value] if isinstance(out, Ref) else out for out in self._outputs]
        result = pytree.tree_unflatten(flat, self.captured.out_spec)
        return rebuild_objects(result) if self._has_objects else result

    def can_run(self, leaves: Sequence[Any]) -> bool:
        """Return False if a written value shares memory with other inputs or state, unlike at capture."""
        if not self._writes:
            return True
        self._check_state_storages()
        storages = [_get_storage(one) for one in leaves if isinstance(one, torch.Tensor)]
        if self._writes_inputs and len(storages) != len(set(storages)):
            return False
        return self._state_is_apart and self._forbidden_storages.isdisjoint(storages)

    def _check_state_storages(self) -> None:
        """Update forbidden storages, and whether written state is private, if state moved."""
        tensors = [holder[key] for _, holder, key in self._state] + list(self.program.constants.values())
        places = list(map(torch.Tensor.data_ptr, tensors))
        if places == self._addresses:
            return
        storages = list(map(_get_storage, tensors))
        written = [storages[number] for number in self._written_state]
        times = Counter(storages)
        self._state_is_apart = all(times[one] == 1 for one in written)
        self._forbidden_storages = set(storages if self._writes_inputs else written)
        self._addresses = places

    @contextlib.contextmanager
    def keep_state(self) -> Iterator[None]:
        """Restore written buffers and torch's generator when the context ends."""
        written = set(self.captured.written_values)
        copies = [(holder[key], holder[key].detach().clone()) for v, holder, key in self._state if v in written]
        rng = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(rng)
            with torch.no_grad():
                for tensor, copy in copies:
                    tensor.copy_(copy)

    def copy_written_leaves(self, leaves: Sequence[Any]) -> List[Any]:
        """Copy the inputs that the program writes to."""
        written = set(self.captured.written_values)
        return [
            leaf.detach().clone().requires_grad_(leaf.requires_grad)
            if value in written and isinstance(leaf, torch.Tensor)
            else leaf
            for value, leaf in zip(self.program.inputs, leaves)
        ]


def _get_storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _find_holder(module: torch.nn.Module, name: str) -> Tuple[Dict[str, Any], str]:
    """Find the dictionary that holds a parameter or buffer, and its key there."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    holder: Dict[str, Any] = owner._parameters if key in owner._parameters else owner._buffers
    return holder, key
