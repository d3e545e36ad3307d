"""Detect changes of a module: modes, submodules, attributes, tensors, hooks; cheap enough for every call.

Measured side: standard library and torch only, Python 3.9.

The quick check compares the identities of all objects in C. Values are compared only if one differs.
Attributes set to equal values and parameters replaced by similar ones do not matter.
"""

from __future__ import annotations

import itertools
import operator
import re
from typing import Any, Dict, Hashable, Iterator, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

# The oldest supported version of torch, whose export keeps operators whole.
OLDEST_TORCH = (2, 6)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Attributes that every module has. They are checked separately.
_STANDARD_ATTRIBUTES = frozenset(vars(nn.Module()))
# Attributes that recurrent modules derive from parameters.
_DERIVED_ATTRIBUTES = frozenset(("_flat_weights", "_flat_weight_refs"))
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# Maximum number of compared objects in lists, dictionaries and other attributes.
MAX_WATCHED = 4000
_MAX_DEPTH = 4
_get_register = operator.itemgetter("_parameters")


class ModuleWatch:
    """Detects changes that invalidate a captured program."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self._hooks: List[Any] = [getattr(one, name) for one in self.modules for name in _HOOKS]
        parameters = list(module.parameters())
        self._samples = [*parameters[:1], *parameters[-1:]]
        self._classes = list(map(type, self.modules))
        held = _HeldValues(self.modules)
        self.has_hidden_parameters = held.has_hidden_parameters
        self._attribute_dicts = [vars(one) for one in self.modules]
        self._registers = list(map(_get_register, self._attribute_dicts))
        self._collections = [*self._attribute_dicts, *held.views]
        self._sizes = list(map(len, self._collections))
        attributes = [
            (attribute_dict.values(), count)
            for attribute_dict in self._attribute_dicts
            if (count := _count_custom_attributes(attribute_dict))
        ]
        self._attributes, self._counts = [one for one, _ in attributes], [count for _, count in attributes]
        self._views = [view for view in held.views if len(view)]
        self._last_objects = list(self._iterate_objects())
        self._tensors = [one for _, one in _list_tensors(self.modules) if type(one) in (torch.Tensor, nn.Parameter)]
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        self.attributes, self.tensors = held.described, _describe_tensors(self.modules)

    def _iterate_objects(self) -> Iterator[Any]:
        """Iterate over all held objects, except the standard attributes, which come first."""
        last = map(itertools.islice, map(reversed, self._attributes), self._counts)
        return itertools.chain.from_iterable(itertools.chain(last, self._views))

    def is_unchanged(self) -> bool:
        """Return whether all objects are identical to before, and tensors have not moved."""
        return self._has_same_objects() and list(map(torch.Tensor.data_ptr, self._tensors)) == self._addresses

    def _has_same_objects(self) -> bool:
        if list(map(len, self._collections)) != self._sizes or list(map(type, self.modules)) != self._classes:
            return False
        try:
            return all(map(operator.is_, map(_get_register, self._attribute_dicts), self._registers)) and all(
                map(operator.is_, self._iterate_objects(), self._last_objects)
            )
        # Another thread changes a dictionary.
        except (RuntimeError, KeyError):
            return False

    def has_only_moved(self) -> bool:
        """Return whether only tensors have moved, as after p.data = ...; accept the new addresses."""
        if not self._has_same_objects() or _describe_tensors(self.modules) != self.tensors:
            return False
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        return True

    def is_equivalent_to(self, older: ModuleWatch) -> bool:
        """Return whether programs captured under an older watch are still valid."""
        return (
            len(self.modules) == len(older.modules)
            and all(map(operator.is_, self.modules, older.modules))
            and all(map(operator.is_, self._registers, older._registers))
            and self._classes == older._classes
            and self.attributes == older.attributes
            and self.tensors == older.tensors
        )

    def read_training_flags(self) -> bytes:
        """Return which of the modules are in training mode."""
        return bytes([one.training for one in self.modules])

    def read_state(self) -> Tuple[bytes, Tuple[Any, ...]]:
        """Return training flags, types and devices; equal as long as one program is valid."""
        types_and_devices = tuple((one.dtype, one.device) for one in self._samples)
        return self.read_training_flags(), types_and_devices

    def has_hooks(self) -> bool:
        """Return whether hooks listen to its calls; replayed operators would skip them."""
        return any(self._hooks) or bool(module_hooks._has_any_global_hook())  # type: ignore[no-untyped-call]


class _HeldValues:
    """Everything that modules hold: live views to compare by identity, a description to compare by value."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.views: List[Any] = []
        self.has_hidden_parameters = False
        self._seen = set(map(id, modules))
        self._registered: Dict[int, int] = {}
        for number, (_, one) in enumerate(_list_tensors(modules)):
            self._registered.setdefault(id(one), number)
        self._num_left = MAX_WATCHED
        self.described = [self._describe_module(one) for one in modules]

    def _describe_module(self, module: nn.Module) -> Hashable:
        module_attributes = vars(module)
        held = (module._parameters, module._buffers, module._modules)
        self.views += [one.values() for one in held]
        parts = tuple((name, id(part)) for name, part in module._modules.items())
        plain = [
            (name, self._describe_value(module_attributes[name], 0))
            for name in module_attributes
            if name not in _STANDARD_ATTRIBUTES | _DERIVED_ATTRIBUTES
        ]
        return (parts, *sorted(plain, key=operator.itemgetter(0)))

    def _describe_value(self, value: Any, depth: int) -> Hashable:
        """Describe a value for comparison: plain values by text, others by identity and contents."""
        if isinstance(value, _PLAIN_TYPES):
            # As text, -0.0 differs from 0.0 and nan equals nan.
            return (type(value), repr(value))
        if id(value) in self._registered:
            return ("registered", self._registered[id(value)])
        if isinstance(value, nn.Parameter):
            self.has_hidden_parameters = True
        if isinstance(value, torch.Tensor) or id(value) in self._seen or depth > _MAX_DEPTH:
            return id(value)
        return self._describe_contents(value, depth)

    def _describe_contents(self, value: Any, depth: int) -> Hashable:
        if type(value) is tuple or isinstance(value, torch.Size):
            return (tuple, *self._describe_values(value, depth))
        self._seen.add(id(value))
        if isinstance(value, (list, set, frozenset)):
            return (type(value), *self._watch_values(value, depth))
        if isinstance(value, dict):
            return (type(value), self._watch_values(value.keys(), depth), self._watch_values(value.values(), depth))
        if isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module)):
            return id(value)
        object_attributes = getattr(value, "__dict__", None)
        if type(object_attributes) is not dict:
            return id(value)
        return (id(value), tuple(object_attributes), self._watch_values(object_attributes.values(), depth))

    def _watch_values(self, values: Any, depth: int) -> Tuple[Hashable, ...]:
        if len(values) > self._num_left:
            return (len(values),)
        self._num_left -= len(values)
        self.views.append(values)
        return self._describe_values(values, depth)

    def _describe_values(self, values: Any, depth: int) -> Tuple[Hashable, ...]:
        return tuple([self._describe_value(one, depth + 1) for one in values])


def _count_custom_attributes(attribute_dict: Dict[str, Any]) -> int:
    """Count the attributes from the first non-standard one on."""
    return len(attribute_dict) - next(
        (n for n, name in enumerate(attribute_dict) if name not in _STANDARD_ATTRIBUTES), len(attribute_dict)
    )


def _describe_tensors(modules: Sequence[nn.Module]) -> Tuple[Hashable, ...]:
    """Describe parameters and buffers by name: their types, and which are identical."""
    first: Dict[int, int] = {}
    descriptions: List[Hashable] = []
    for number, (name, tensor) in enumerate(_list_tensors(modules)):
        first_number = first.setdefault(id(tensor), number)
        descriptions.append((name, None) if tensor is None else (name, first_number, *_describe_tensor(tensor)))
    return tuple(descriptions)


def _describe_tensor(tensor: torch.Tensor) -> Tuple[Hashable, ...]:
    if tensor.layout != torch.strided or nn.parameter.is_lazy(tensor):
        return (id(tensor),)
    return (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


def _list_tensors(modules: Sequence[nn.Module]) -> Iterator[Tuple[str, Any]]:
    for part in modules:
        yield from part._parameters.items()
        yield from part._buffers.items()


def explain_unsupported_module(module: nn.Module) -> str:
    """Explain why this module must run itself for all inputs; empty if plans are possible."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type != "cpu":
            return f"the model is on {tensor.device.type}, whose operators do not run on CPU threads"
    if _parse_torch_version() < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return f"torch {torch.__version__} is older than {oldest}, the oldest supported version"
    type_name = type(module).__name__
    if isinstance(module, nn.parallel.DistributedDataParallel) or "FullyShardedDataParallel" in type_name:
        return f"{type_name} does more than its operators show; wrap its inner module with malleable first"
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted module cannot be captured"
    if hasattr(module, "_orig_mod"):
        return "a compiled module runs its own code"
    return ""


def _parse_torch_version() -> Tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return tuple(int(part) for part in match.groups()) if match else OLDEST_TORCH
