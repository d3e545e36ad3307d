"""What a module holds besides its operators: attributes, containers, tensors, generators; seen and put back.

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

MOST_WATCHED = 1_000_000  # things that attributes hold
_MOST_COPIED_BYTES = 2**30  # of tensors; of those beyond, torch's count of writes is watched
PYTHON_RANDOM, NUMPY_RANDOM = "Python's random", "numpy.random"  # as names of what changed
_PLAIN = (int, float, complex, str, bytes, frozenset, range, slice, torch.device, torch.dtype, type(None))
_NAMED_PARTS = ("_parameters", "_buffers", "_modules")  # of a module: attributes under their own names
# Whose objects keep caches and locks of their own, and are no state of a model.
_NOT_WALKED = {"torch", "corewise", "numpy", "builtins", "logging", "threading", "concurrent", "types",
               "functools", "weakref", "_thread", "typing", "enum", "re", "abc", "collections"}  # fmt: skip


class TooMuchToWatch(Exception):
    """Attributes hold more than can be compared."""


class _Held(NamedTuple):
    """One thing that can change, with what it held."""

    thing: Any
    name: str  # of the attribute that leads to it
    content: Any
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    is_named: bool = False  # its keys are names of attributes


_State = Tuple[type, Callable[[Any], Any], Callable[[Any, Any], None]]


def _settle(module: nn.Module) -> None:
    """Does what the next call would: recurrent modules whose parameters were replaced list them anew."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and hasattr(part, "_update_flat_weights"):
            part._update_flat_weights()


class ModuleState:
    """All a module holds now, to be compared and put back after a run."""

    def __init__(self, module: nn.Module) -> None:
        self._held: List[_Held] = []
        self._tensors: List[Tuple[torch.Tensor, str, int, Any]] = []  # with their counts of writes and copies
        self._seen: Dict[int, Any] = {}
        self._num_copied_bytes = 0
        _settle(module)
        self._walk([(module, ""), *_shared_generators()])

    def _walk(self, waiting: List[Tuple[Any, str]]) -> None:
        while waiting:
            thing, name = waiting.pop()
            if isinstance(thing, _PLAIN) or id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing
            if len(self._seen) > MOST_WATCHED:
                raise TooMuchToWatch(f"its attributes hold more than {MOST_WATCHED} things")
            waiting.extend(self._kept(thing, name))

    def _kept(self, thing: Any, name: str) -> Iterator[Tuple[Any, str]]:
        """Keeps what this thing holds; gives what is to be looked at next."""
        if isinstance(thing, torch.Tensor):
            self._keep_tensor(thing, name)
        elif isinstance(thing, Mapping):
            if isinstance(thing, dict):
                self._held.append(_Held(thing, name, dict(thing), dict, _write_dict))
            yield from ((one, name) for one in thing.values())
        elif isinstance(thing, (list, set, collections.deque)):
            copied = set if isinstance(thing, set) else list
            self._held.append(_Held(thing, name, copied(thing), copied, _write_items))
            yield from ((one, name) for one in thing)
        elif isinstance(thing, tuple):
            yield from ((one, name) for one in thing)
        else:
            for kind, read, write in _states():
                if isinstance(thing, kind):
                    self._held.append(_Held(thing, name, read(thing), read, write))
                    return
            yield from self._attributes(thing, name)

    def _attributes(self, thing: Any, name: str) -> Iterator[Tuple[Any, str]]:
        is_module = isinstance(thing, nn.Module)
        if not is_module and type(thing).__module__.partition(".")[0] in _NOT_WALKED:
            return
        held = getattr(thing, "__dict__", None)
        if isinstance(thing, type):
            return
        slots = _read_slots(thing)
        if slots:
            self._held.append(_Held(thing, name, slots, _read_slots, _write_slots, is_named=True))
            yield from ((one, key) for key, one in slots.items())
        if not isinstance(held, dict):
            return
        self._held.append(_Held(held, name, dict(held), dict, _write_dict, is_named=True))
        for key, value in list(held.items()):
            if is_module and key in _NAMED_PARTS and isinstance(value, dict):
                self._held.append(_Held(value, key, dict(value), dict, _write_dict, is_named=True))
                self._seen[id(value)] = value
                yield from ((one, inner) for inner, one in value.items())
            else:
                yield value, key
        for kind in type(thing).__mro__ if is_module else ():
            if kind.__module__.partition(".")[0] not in _NOT_WALKED and id(kind) not in self._seen:
                self._seen[id(kind)] = kind
                content = _read_class(kind)
                self._held.append(_Held(kind, name, content, _read_class, _write_class, is_named=True))
                containers = (list, dict, set, collections.deque, torch.Tensor)
                yield from ((one, key) for key, one in content.items() if isinstance(one, containers))

    def _keep_tensor(self, tensor: torch.Tensor, name: str) -> None:
        if nn.parameter.is_lazy(tensor) or tensor.is_inference():
            return
        copied, size = None, tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
        is_copied = size and tensor.device.type == "cpu" and not isinstance(tensor, nn.Parameter)
        if is_copied and self._num_copied_bytes + size <= _MOST_COPIED_BYTES:
            self._num_copied_bytes += size
            copied = tensor.detach().clone()
        self._tensors.append((tensor, name, tensor._version, copied))

    def changes(self, written: Collection[int] = ()) -> List[str]:
        """The names of what is no longer as it was; memory among `written` may be."""
        found: Set[str] = set()
        for held in self._held:
            now = held.read(held.thing)
            if held.is_named:
                names = held.content.keys() | now.keys()
                found |= {
                    one for one in names if not _is_same(held.content.get(one, held), now.get(one, held))
                }
            elif not _is_same(held.content, now):
                found.add(held.name)
        for tensor, name, version, copied in self._tensors:
            if tensor.layout == torch.strided and tensor.untyped_storage()._cdata in written:
                continue
            is_same = tensor._version == version if copied is None else _has_content(tensor, copied)
            if not is_same:
                found.add(name)
        return sorted(found)

    def restore(self) -> None:
        """Puts back what has changed, down to the contents of tensors."""
        for held in self._held:
            now = held.read(held.thing)
            if not _is_same(held.content, now) or _order(held.content) != _order(now):
                held.write(held.thing, held.content)
        with torch.no_grad():
            for tensor, _, _, copied in self._tensors:
                if copied is not None and not _has_content(tensor, copied):
                    tensor.copy_(copied)


def _is_same(one: Any, two: Any) -> bool:
    """Whether both are the same thing, or plain values that are equal, or hold such."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, _PLAIN):
        return bool(one == two)
    if isinstance(one, (tuple, list)):
        return len(one) == len(two) and all(map(_is_same_element, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_is_same_element(one[key], two[key]) for key in one)
    return isinstance(one, set) and bool(one == two)


def _is_same_element(one: Any, two: Any) -> bool:
    """As above, but containers within are watched themselves: another one is a change."""
    if isinstance(one, (list, dict, set)):
        return one is two
    return _is_same(one, two)


def _order(content: Any) -> Any:
    return list(content) if isinstance(content, dict) else None


def _has_content(tensor: torch.Tensor, copied: torch.Tensor) -> bool:
    now = tensor.detach()
    if now.shape != copied.shape or now.dtype != copied.dtype:
        return False
    return bool(torch.equal(_bits(now), _bits(copied)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _write_dict(thing: Dict[Any, Any], content: Mapping[Any, Any]) -> None:
    for key in thing.keys() - content.keys():
        del thing[key]
    for key, value in content.items():
        if key not in thing or thing[key] is not value:
            thing[key] = value
    if _order(thing) != _order(content):
        thing.clear()
        thing.update(content)


def _write_items(thing: Any, content: Any) -> None:
    thing.clear()
    (thing.update if isinstance(thing, set) else thing.extend)(content)


def _read_slots(thing: Any) -> Dict[str, Any]:
    slots = [vars(kind).get("__slots__", ()) for kind in type(thing).__mro__]
    names = [name for one in slots for name in ((one,) if isinstance(one, str) else one)]
    kept = [name for name in names if name not in ("__dict__", "__weakref__") and hasattr(thing, name)]
    return {name: getattr(thing, name) for name in kept}


def _write_slots(thing: Any, content: Mapping[str, Any]) -> None:
    for name, value in content.items():
        object.__setattr__(thing, name, value)


def _read_class(kind: type) -> Dict[str, Any]:
    return {name: one for name, one in vars(kind).items() if not name.startswith(("__", "_abc_"))}


def _write_class(kind: type, content: Mapping[str, Any]) -> None:
    now = _read_class(kind)
    for name in now.keys() - content.keys():
        delattr(kind, name)
    for name, value in content.items():
        if now.get(name, kind) is not value:
            setattr(kind, name, value)


def _states() -> List[_State]:
    """Things with a state inside: which, how it is read as a plain value, how it is set."""
    found: List[_State] = [
        (random.Random, lambda one: one.getstate(), lambda one, state: one.setstate(state)),
        (
            torch.Generator,
            lambda one: bytes(one.get_state().tolist()),
            lambda one, state: one.set_state(torch.tensor(list(state), dtype=torch.uint8)),
        ),
    ]
    numpy = sys.modules.get("numpy")
    drawing = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "ndarray"):
        found.append((numpy.ndarray, _read_array, _write_array))
    if drawing is not None and hasattr(drawing, "RandomState"):
        found.append((drawing.RandomState, _read_random_state, _write_random_state))
        found.append((drawing.Generator, _read_drawing, _write_drawing))
    return found


def _shared_generators() -> List[Tuple[Any, str]]:
    """Python's generator and numpy's, which torch's seeds do not govern."""
    found: List[Tuple[Any, str]] = [(getattr(random, "_inst", None), PYTHON_RANDOM)]
    drawing = sys.modules.get("numpy.random")
    return [*found, (getattr(getattr(drawing, "mtrand", None), "_rand", None), NUMPY_RANDOM)]


def _read_array(array: Any) -> Any:
    return None if array.dtype.hasobject else array.tobytes()


def _write_array(array: Any, content: Any) -> None:
    if content is not None and array.flags.writeable:
        array[...] = type(array)(array.shape, array.dtype, content)


def _read_random_state(drawing: Any) -> bytes:
    return pickle.dumps(drawing.get_state(legacy=True), protocol=4)


def _write_random_state(drawing: Any, content: bytes) -> None:
    drawing.set_state(pickle.loads(content))


def _read_drawing(drawing: Any) -> bytes:
    return pickle.dumps(drawing.bit_generator.state, protocol=4)


def _write_drawing(drawing: Any, content: bytes) -> None:
    drawing.bit_generator.state = pickle.loads(content)
