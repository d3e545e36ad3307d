"""Take results apart that hold tensors in objects which torch does not know, such as caches of keys and values.

Measured side: standard library and torch only, Python 3.9. torch.export and comparisons see only tensors in
containers that are registered with pytree. An object of another class is represented by its attributes: those
with tensors become part of the tree, the others are constants for all inputs of one signature.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import types
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Set, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

# What torch.export says about an object of an unknown class in a result.
UNKNOWN_RESULT = "in output, which is not a known type"
_MAX_DEPTH = 8
_COPIED_TYPES = (list, dict, set)
_OPAQUE_TYPES = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, nn.Module)


@dataclass(frozen=True)
class ObjectShape:
    """The class of an object, the order of its attributes, and the values of those without tensors."""

    cls: type
    names: Tuple[str, ...]
    constants: Mapping[str, Any]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ObjectShape)
            and (self.cls, self.names) == (other.cls, other.names)
            and self.constants.keys() == other.constants.keys()
            and all(_is_same(value, other.constants[name]) for name, value in self.constants.items())
        )

    def __hash__(self) -> int:
        return hash((self.cls, self.names))


class HeldTensors:
    """Stands for an object of an unknown class in a tree: its attributes with tensors, and its shape."""

    def __init__(self, attributes: Dict[str, Any], shape: ObjectShape) -> None:
        self.attributes, self.shape = attributes, shape


def _flatten_held(held: HeldTensors) -> Tuple[List[Any], Any]:
    return list(held.attributes.values()), (tuple(held.attributes), held.shape)


def _unflatten_held(children: Any, context: Any) -> HeldTensors:
    names, shape = context
    return HeldTensors(dict(zip(names, children)), shape)


pytree.register_pytree_node(HeldTensors, _flatten_held, _unflatten_held, serialized_type_name="corewise.HeldTensors")


def expand_objects(result: Any) -> Any:
    """Replace objects of unknown classes that hold tensors by trees of these tensors."""
    if isinstance(result, torch.Tensor):
        return result
    return _expand(result, set(), _MAX_DEPTH)


def rebuild_objects(result: Any) -> Any:
    """Build new objects from what `expand_objects` returned."""
    leaves, spec = pytree.tree_flatten(result, is_leaf=lambda one: isinstance(one, HeldTensors))
    rebuilt = [_rebuild(leaf) if isinstance(leaf, HeldTensors) else leaf for leaf in leaves]
    return pytree.tree_unflatten(rebuilt, spec)


def has_objects(spec: Any) -> bool:
    """Return whether trees of this structure stand for objects of unknown classes."""
    tree = pytree.tree_unflatten([None] * spec.num_leaves, spec)
    leaves = pytree.tree_leaves(tree, is_leaf=lambda one: isinstance(one, HeldTensors))
    return any(isinstance(leaf, HeldTensors) for leaf in leaves)


@contextlib.contextmanager
def expand_results_of(module: nn.Module) -> Iterator[None]:
    """Let the module's forward return expanded results to the calling thread."""
    forward, own_thread = module.forward, threading.get_ident()
    had_own = "forward" in vars(module)

    @functools.wraps(forward)
    def forward_expanded(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        return expand_objects(result) if threading.get_ident() == own_thread else result

    vars(module)["forward"] = forward_expanded
    try:
        yield
    finally:
        if had_own:
            vars(module)["forward"] = forward
        else:
            vars(module).pop("forward", None)


def _expand(tree: Any, seen: Set[int], depth: int) -> Any:
    leaves, spec = pytree.tree_flatten(tree)
    expanded = [_expand_leaf(leaf, seen, depth) for leaf in leaves]
    if all(one is two for one, two in zip(leaves, expanded)):
        return tree
    return pytree.tree_unflatten(expanded, spec)


def _expand_leaf(leaf: Any, seen: Set[int], depth: int) -> Any:
    """Return the tree of an object that holds tensors; return anything else unchanged."""
    if not _is_holder(leaf) or depth == 0 or id(leaf) in seen:
        return leaf
    # An object that occurs twice would be built twice, so its second occurrence stays an unknown object.
    seen.add(id(leaf))
    values = {name: _expand(value, seen, depth - 1) for name, value in vars(leaf).items()}
    attributes = {name: value for name, value in values.items() if _has_tensors(value)}
    if not attributes:
        return leaf
    constants = {name: value for name, value in vars(leaf).items() if name not in attributes}
    return HeldTensors(attributes, ObjectShape(type(leaf), tuple(values), constants))


def _is_holder(leaf: Any) -> bool:
    """Return whether an object consists of its attributes alone."""
    if isinstance(leaf, (torch.Tensor, HeldTensors, *_OPAQUE_TYPES)) or not hasattr(leaf, "__dict__"):
        return False
    bases = [base for base in type(leaf).__mro__ if base is not object]
    # A subclass of list or dict holds more than its attributes.
    return all(base.__flags__ & _HEAP_TYPE and not vars(base).get("__slots__") for base in bases)


# The flag of classes that are defined in Python.
_HEAP_TYPE = 1 << 9


def _has_tensors(tree: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(tree))


def _rebuild(held: HeldTensors) -> Any:
    rebuilt: Any = object.__new__(held.shape.cls)
    for name in held.shape.names:
        if name in held.attributes:
            value = rebuild_objects(held.attributes[name])
        else:
            constant = held.shape.constants[name]
            value = copy.copy(constant) if type(constant) in _COPIED_TYPES else constant
        rebuilt.__dict__[name] = value
    return rebuilt


def _is_same(one: Any, two: Any) -> bool:
    """Return whether two constants are interchangeable; objects without a comparison count if their state is."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    try:
        if bool(one == two):
            return True
    except Exception:
        return False
    if not _is_holder(one) or any("__eq__" in vars(base) for base in type(one).__mro__[:-1]):
        return False
    return _describe_object(one) == _describe_object(two)


def _describe_object(one: Any) -> ObjectShape:
    return ObjectShape(type(one), tuple(vars(one)), vars(one))
