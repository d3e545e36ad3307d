"""Record and restore all that a module holds: attributes, containers, tensors, generators.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import collections
import pickle
import random
import sys
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Set, Tuple

import torch
from torch import nn

# Maximum number of recorded objects. A module with more is not planned for.
MAX_WATCHED = 1_000_000
# Maximum bytes of copied tensors. For further tensors, torch's version counter is compared.
_MAX_COPIED_BYTES = 2**30
# Names that find_changes reports for the global generators.
PYTHON_RANDOM, NUMPY_RANDOM = "Python's random", "numpy.random"
_ATOMS = (int, float, complex, str, bytes, frozenset, range, slice, torch.device, torch.dtype, type(None))
# Dictionaries of a module whose keys are attribute names.
_NAMED_PARTS = ("_parameters", "_buffers", "_modules")
# Packages whose objects hold caches and locks, which are no state of a model.
_SKIPPED_PACKAGES = {
    "torch", "corewise", "numpy", "builtins", "logging", "threading", "concurrent", "types", "functools",
    "weakref", "_thread", "typing", "enum", "re", "abc", "collections",
}  # fmt: skip


class TooManyAttributesError(Exception):
    """Raised if attributes hold more objects than can be compared."""


class _Snapshot(NamedTuple):
    """The content of one mutable object."""

    item: Any
    # Name of the attribute that leads to the object.
    name: str
    content: Any
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    # The keys are attribute names.
    is_named: bool = False


_StateAccess = Tuple[type, Callable[[Any], Any], Callable[[Any, Any], None]]


def _update_rnn_weights(module: nn.Module) -> None:
    """Update the weight lists of recurrent modules whose parameters were replaced, as the next call would."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and hasattr(part, "_update_flat_weights"):
            part._update_flat_weights()


class ModuleState:
    """Everything that a module holds now, to compare and restore after a run."""

    def __init__(self, module: nn.Module) -> None:
        self._snapshots: List[_Snapshot] = []
        # Tensors with name, version counter and copy.
        self._tensors: List[Tuple[torch.Tensor, str, int, Any]] = []
        self._seen: Dict[int, Any] = {}
        self._num_copied_bytes = 0
        _update_rnn_weights(module)
        self._walk([(module, ""), *_find_shared_generators()])

    def _walk(self, waiting: List[Tuple[Any, str]]) -> None:
        while waiting:
            item, name = waiting.pop()
            if isinstance(item, _ATOMS) or id(item) in self._seen:
                continue
            self._seen[id(item)] = item
            if len(self._seen) > MAX_WATCHED:
                raise TooManyAttributesError(f"its attributes hold more than {MAX_WATCHED} objects")
            waiting.extend(self._record(item, name))

    def _record(self, item: Any, name: str) -> Iterator[Tuple[Any, str]]:
        """Record what this object holds; yield the objects to visit next."""
        if isinstance(item, torch.Tensor):
            self._record_tensor(item, name)
        elif isinstance(item, Mapping):
            if isinstance(item, dict):
                self._snapshots.append(_Snapshot(item, name, dict(item), dict, _write_dict))
            yield from ((element, name) for element in item.values())
        elif isinstance(item, (list, set, collections.deque)):
            copy_type = set if isinstance(item, set) else list
            self._snapshots.append(_Snapshot(item, name, copy_type(item), copy_type, _write_items))
            yield from ((element, name) for element in item)
        elif isinstance(item, tuple):
            yield from ((element, name) for element in item)
        else:
            for state_type, read, write in _list_state_types():
                if isinstance(item, state_type):
                    self._snapshots.append(_Snapshot(item, name, read(item), read, write))
                    return
            yield from self._record_attributes(item, name)

    def _record_attributes(self, item: Any, name: str) -> Iterator[Tuple[Any, str]]:
        is_module = isinstance(item, nn.Module)
        if not is_module and type(item).__module__.partition(".")[0] in _SKIPPED_PACKAGES:
            return
        attributes = getattr(item, "__dict__", None)
        if isinstance(item, type):
            return
        slots = _read_slots(item)
        if slots:
            self._snapshots.append(_Snapshot(item, name, slots, _read_slots, _write_slots, is_named=True))
            yield from ((value, key) for key, value in slots.items())
        if not isinstance(attributes, dict):
            return
        self._snapshots.append(_Snapshot(attributes, name, dict(attributes), dict, _write_dict, is_named=True))
        for key, value in list(attributes.items()):
            if is_module and key in _NAMED_PARTS and isinstance(value, dict):
                self._snapshots.append(_Snapshot(value, key, dict(value), dict, _write_dict, is_named=True))
                self._seen[id(value)] = value
                yield from ((part, inner) for inner, part in value.items())
            else:
                yield value, key
        for base in type(item).__mro__ if is_module else ():
            if base.__module__.partition(".")[0] not in _SKIPPED_PACKAGES and id(base) not in self._seen:
                self._seen[id(base)] = base
                content = _read_class(base)
                self._snapshots.append(_Snapshot(base, name, content, _read_class, _write_class, is_named=True))
                containers = (list, dict, set, collections.deque, torch.Tensor)
                yield from ((value, key) for key, value in content.items() if isinstance(value, containers))

    def _record_tensor(self, tensor: torch.Tensor, name: str) -> None:
        if nn.parameter.is_lazy(tensor) or tensor.is_inference():
            return
        copy, size = None, tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
        is_copied = size and tensor.device.type == "cpu" and not isinstance(tensor, nn.Parameter)
        if is_copied and self._num_copied_bytes + size <= _MAX_COPIED_BYTES:
            self._num_copied_bytes += size
            copy = tensor.detach().clone()
        self._tensors.append((tensor, name, tensor._version, copy))

    def find_changes(self, written: Collection[int] = ()) -> List[str]:
        """List the names of what has changed; storages among `written` may change."""
        changed: Set[str] = set()
        for snapshot in self._snapshots:
            now = snapshot.read(snapshot.item)
            if snapshot.is_named:
                names = snapshot.content.keys() | now.keys()
                changed |= {
                    key for key in names if not _is_equal(snapshot.content.get(key, snapshot), now.get(key, snapshot))
                }
            elif not _is_equal(snapshot.content, now):
                changed.add(snapshot.name)
        for tensor, name, version, copy in self._tensors:
            if tensor.layout == torch.strided and tensor.untyped_storage()._cdata in written:
                continue
            is_unchanged = tensor._version == version if copy is None else _has_content(tensor, copy)
            if not is_unchanged:
                changed.add(name)
        return sorted(changed)

    def restore(self) -> None:
        """Restore what has changed, including the contents of tensors."""
        for snapshot in self._snapshots:
            now = snapshot.read(snapshot.item)
            if not _is_equal(snapshot.content, now) or _get_order(snapshot.content) != _get_order(now):
                snapshot.write(snapshot.item, snapshot.content)
        with torch.no_grad():
            for tensor, _, _, copy in self._tensors:
                if copy is not None and not _has_content(tensor, copy):
                    tensor.copy_(copy)


def _is_equal(one: Any, two: Any) -> bool:
    """Return whether both are the same object, or equal plain values or containers of these."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, _ATOMS):
        return bool(one == two)
    if isinstance(one, (tuple, list)):
        return len(one) == len(two) and all(map(_is_equal_element, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_is_equal_element(one[key], two[key]) for key in one)
    return isinstance(one, set) and bool(one == two)


def _is_equal_element(one: Any, two: Any) -> bool:
    """Compare as above, but containers by identity: they have snapshots themselves."""
    if isinstance(one, (list, dict, set)):
        return one is two
    return _is_equal(one, two)


def _get_order(content: Any) -> Any:
    return list(content) if isinstance(content, dict) else None


def _has_content(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    now = tensor.detach()
    if now.shape != copy.shape or now.dtype != copy.dtype:
        return False
    return bool(torch.equal(_read_bits(now), _read_bits(copy)))


def _read_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _write_dict(target: Dict[Any, Any], content: Mapping[Any, Any]) -> None:
    for key in target.keys() - content.keys():
        del target[key]
    for key, value in content.items():
        if key not in target or target[key] is not value:
            target[key] = value
    if _get_order(target) != _get_order(content):
        target.clear()
        target.update(content)


def _write_items(target: Any, content: Any) -> None:
    target.clear()
    (target.update if isinstance(target, set) else target.extend)(content)


def _read_slots(item: Any) -> Dict[str, Any]:
    slots = [vars(base).get("__slots__", ()) for base in type(item).__mro__]
    names = [name for declared in slots for name in ((declared,) if isinstance(declared, str) else declared)]
    present = [name for name in names if name not in ("__dict__", "__weakref__") and hasattr(item, name)]
    return {name: getattr(item, name) for name in present}


def _write_slots(item: Any, content: Mapping[str, Any]) -> None:
    for name, value in content.items():
        object.__setattr__(item, name, value)


def _read_class(cls: type) -> Dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith(("__", "_abc_"))}


def _write_class(cls: type, content: Mapping[str, Any]) -> None:
    now = _read_class(cls)
    for name in now.keys() - content.keys():
        delattr(cls, name)
    for name, value in content.items():
        if now.get(name, cls) is not value:
            setattr(cls, name, value)


def _list_state_types() -> List[_StateAccess]:
    """List types with internal state: type, reader to a plain value, writer."""
    access: List[_StateAccess] = [
        (random.Random, lambda one: one.getstate(), lambda one, state: one.setstate(state)),
        (
            torch.Generator,
            lambda one: bytes(one.get_state().tolist()),
            lambda one, state: one.set_state(torch.tensor(list(state), dtype=torch.uint8)),
        ),
    ]
    numpy = sys.modules.get("numpy")
    numpy_random = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "ndarray"):
        access.append((numpy.ndarray, _read_array, _write_array))
    if numpy_random is not None and hasattr(numpy_random, "RandomState"):
        access.append((numpy_random.RandomState, _read_random_state, _write_random_state))
        access.append((numpy_random.Generator, _read_generator, _write_generator))
    return access


def _find_shared_generators() -> List[Tuple[Any, str]]:
    """Find the global generators of Python and numpy, which torch's seeds do not control."""
    generators: List[Tuple[Any, str]] = [(getattr(random, "_inst", None), PYTHON_RANDOM)]
    numpy_random = sys.modules.get("numpy.random")
    return [*generators, (getattr(getattr(numpy_random, "mtrand", None), "_rand", None), NUMPY_RANDOM)]


def _read_array(array: Any) -> Any:
    return None if array.dtype.hasobject else array.tobytes()


def _write_array(array: Any, content: Any) -> None:
    if content is not None and array.flags.writeable:
        array[...] = type(array)(array.shape, array.dtype, content)


def _read_random_state(generator: Any) -> bytes:
    return pickle.dumps(generator.get_state(legacy=True), protocol=4)


def _write_random_state(generator: Any, content: bytes) -> None:
    generator.set_state(pickle.loads(content))


def _read_generator(generator: Any) -> bytes:
    return pickle.dumps(generator.bit_generator.state, protocol=4)


def _write_generator(generator: Any, content: bytes) -> None:
    generator.bit_generator.state = pickle.loads(content)
