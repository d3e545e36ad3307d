"""Describe results that hold tensors in objects torch's pytrees do not know: caches, dataclasses.

Measured side: standard library and torch only, Python 3.9. torch.export returns only tensors and plain values in
known containers. Other objects are taken apart into their tensors, and built again for each replay.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

# Objects nested deeper are not taken apart.
_MAX_DEPTH = 8
_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, type)


class UnknownResultError(Exception):
    """Raised with the reason if a result cannot be built again."""


class ResultTemplate:
    """The structure of a result without its tensors."""

    def __init__(self, result: Any) -> None:
        self.tensors: List[torch.Tensor] = []
        # Objects that occur twice are one object in each rebuilt result as well.
        self._seen: Dict[int, Any] = {}
        self._held: List[Any] = []
        leaves, spec = pytree.tree_flatten(result)
        builders = [self._describe(leaf, 0) for leaf in leaves]
        is_flat = all(isinstance(leaf, (torch.Tensor, *_PLAIN_TYPES)) for leaf in leaves)
        self._build = _build_flat(spec, leaves) if is_flat else _build_nested(spec, builders)
        # They belong to the call that was described.
        self._seen, self._held = {}, []

    def take_tensors(self) -> List[torch.Tensor]:
        """Return the tensors in order, and forget them: they belong to one call."""
        tensors, self.tensors = self.tensors, []
        return tensors

    def build(self, tensors: List[Any]) -> Any:
        """Build a result of this structure around other tensors."""
        return self._build(tensors)

    def _describe(self, item: Any, depth: int) -> Callable[[List[Any], Dict[int, Any]], Any]:
        if isinstance(item, torch.Tensor):
            place = len(self.tensors)
            self.tensors.append(item)
            return lambda tensors, made: tensors[place]
        if isinstance(item, _PLAIN_TYPES) or callable(item):
            return lambda tensors, made: item
        if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise UnknownResultError("it returns a number that depends on the data")
        if depth > _MAX_DEPTH:
            raise UnknownResultError(f"its result is nested more than {_MAX_DEPTH} deep")
        key = id(item)
        self._held.append(item)
        if key not in self._seen:
            self._seen[key] = None
            self._seen[key] = self._describe_container(item, depth)
        describe = self._seen[key]
        if describe is None:
            raise UnknownResultError(f"its result holds a {type(item).__name__} that refers to itself")

        def build_once(tensors: List[Any], made: Dict[int, Any]) -> Any:
            if key not in made:
                made[key] = describe(tensors, made)
            return made[key]

        return build_once

    def _describe_container(self, item: Any, depth: int) -> Callable[[List[Any], Dict[int, Any]], Any]:
        if type(item) in (list, tuple, set):
            parts = [self._describe(one, depth + 1) for one in item]
            container: Any = type(item)
            return lambda tensors, made: container(part(tensors, made) for part in parts)
        if type(item) is dict:
            values = {name: self._describe(one, depth + 1) for name, one in item.items()}
            return lambda tensors, made: {name: part(tensors, made) for name, part in values.items()}
        return self._describe_object(item, depth)

    def _describe_object(self, item: Any, depth: int) -> Callable[[List[Any], Dict[int, Any]], Any]:
        cls = type(item)
        is_simple = not isinstance(item, (nn.Module, dict, list, tuple)) and hasattr(item, "__dict__")
        has_slots = any(vars(base).get("__slots__") for base in cls.__mro__)
        if not is_simple or has_slots:
            raise UnknownResultError(f"it returns a {cls.__name__}, which is not built from its attributes")
        before = len(self.tensors)
        attributes = {name: self._describe(value, depth + 1) for name, value in vars(item).items()}
        # An object without tensors, such as a configuration, is shared.
        if len(self.tensors) == before and not _is_mutable_result(item):
            return lambda tensors, made: item

        def build(tensors: List[Any], made: Dict[int, Any]) -> Any:
            new = object.__new__(cls)
            vars(new).update({name: part(tensors, made) for name, part in attributes.items()})
            return new

        return build


def _is_mutable_result(item: Any) -> bool:
    """Return whether a caller may fill the object later, as an empty cache."""
    return any(isinstance(value, (list, dict, set)) for value in vars(item).values())


def _build_flat(spec: Any, leaves: List[Any]) -> Callable[[List[Any]], Any]:
    """Build results of tensors and plain values only."""
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return lambda tensors: pytree.tree_unflatten(tensors, spec)
    plain = [(isinstance(leaf, torch.Tensor), None if isinstance(leaf, torch.Tensor) else leaf) for leaf in leaves]

    def build(tensors: List[Any]) -> Any:
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if is_tensor else value for is_tensor, value in plain], spec)

    return build


def _build_nested(spec: Any, builders: List[Any]) -> Callable[[List[Any]], Any]:
    def build(tensors: List[Any]) -> Any:
        made: Dict[int, Any] = {}
        return pytree.tree_unflatten([builder(tensors, made) for builder in builders], spec)

    return build


class TensorsOnly(nn.Module):
    """Calls a module, and returns the tensors of its result as a tuple; `holder` receives the structure."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        # A copy of this module shares the holder.
        self.holder = TemplateHolder()

    def forward(self, *args: Any, **kwargs: Any) -> Tuple[Any, ...]:
        # Hooks of the module run around the replayed operators.
        template = ResultTemplate(type(self.module).forward(self.module, *args, **kwargs))
        self.holder.template = template
        return tuple(template.take_tensors())


class TemplateHolder:
    """Receives the structure of the last result."""

    template: Any = None
