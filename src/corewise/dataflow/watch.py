"""What a module is now: its modes, parts, attributes, tensors, hooks; cheap enough to ask at every call.

Measured side: standard library and torch only, Python 3.9.

The quick question compares identities, in C, of all that the module and its parts hold; only where one
differs are values compared. Attributes set to what they were and parameters replaced by their like do not
matter.
"""

from __future__ import annotations

import itertools
import operator
import re
from typing import Any, Dict, Hashable, Iterator, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

OLDEST = (2, 6)  # version of torch
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_STANDARD = frozenset(vars(nn.Module()))  # what every module has, which is looked at apart
_DERIVED = frozenset(("_flat_weights", "_flat_weight_refs"))  # which recurrent modules make of parameters
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
MOST_WATCHED = 4000  # things in lists, dictionaries and objects that attributes hold
_DEEPEST = 4
_register = operator.itemgetter("_parameters")


class ModuleWatch:
    """Notices what makes a captured program another one."""

    def __init__(self, module: nn.Module) -> None:
        self.modules = list(module.modules())
        self._hooks: List[Any] = [getattr(one, name) for one in self.modules for name in _HOOKS]
        parameters = list(module.parameters())
        self._samples = [*parameters[:1], *parameters[-1:]]
        self._classes = list(map(type, self.modules))
        held = _Held(self.modules)
        self.has_hidden_parameters = held.has_hidden_parameters
        self._own = [vars(one) for one in self.modules]
        self._registers = list(map(_register, self._own))
        self._collections = [*self._own, *held.views]
        self._sizes = list(map(len, self._collections))
        attributes = [(own.values(), count) for own in self._own if (count := _num_last(own))]
        self._attributes, self._counts = [one for one, _ in attributes], [count for _, count in attributes]
        self._views = [view for view in held.views if len(view)]
        self._known = list(self._things())
        self._tensors = [one for _, one in _named(self.modules) if type(one) in (torch.Tensor, nn.Parameter)]
        self._places = list(map(torch.Tensor.data_ptr, self._tensors))
        self.attributes, self.tensors = held.described, _described_tensors(self.modules)

    def _things(self) -> Iterator[Any]:
        """All that is held now; what every module has, which comes first in it, is left out."""
        last = map(itertools.islice, map(reversed, self._attributes), self._counts)
        return itertools.chain.from_iterable(itertools.chain(last, self._views))

    def is_same(self) -> bool:
        """Whether everything is the very object that it was, and tensors lie where they lay."""
        return self._holds_the_same() and list(map(torch.Tensor.data_ptr, self._tensors)) == self._places

    def _holds_the_same(self) -> bool:
        if list(map(len, self._collections)) != self._sizes or list(map(type, self.modules)) != self._classes:
            return False
        try:
            return all(map(operator.is_, map(_register, self._own), self._registers)) and all(
                map(operator.is_, self._things(), self._known)
            )
        except (RuntimeError, KeyError):  # another thread changes a dictionary
            return False

    def moved_only(self) -> bool:
        """Whether nothing but the tensors' places differ, as after p.data = ...; takes these as known."""
        if not self._holds_the_same() or _described_tensors(self.modules) != self.tensors:
            return False
        self._places = list(map(torch.Tensor.data_ptr, self._tensors))
        return True

    def is_like(self, older: ModuleWatch) -> bool:
        """Whether programs captured under an older watch are right still."""
        return (
            len(self.modules) == len(older.modules)
            and all(map(operator.is_, self.modules, older.modules))
            and all(map(operator.is_, self._registers, older._registers))
            and self._classes == older._classes
            and self.attributes == older.attributes
            and self.tensors == older.tensors
        )

    def flags(self) -> bytes:
        """Which of the modules are training."""
        return bytes([one.training for one in self.modules])

    def state(self) -> Tuple[bytes, Tuple[Any, ...]]:
        """Equal as long as the same program is right: training flags, types, devices."""
        kinds = tuple((one.dtype, one.device) for one in self._samples)
        return self.flags(), kinds

    def has_hooks(self) -> bool:
        """Whether someone listens to its calls; replayed operators would not tell them."""
        return any(self._hooks) or bool(module_hooks._has_any_global_hook())  # type: ignore[no-untyped-call]


class _Held:
    """All that modules hold: live views to compare by identity, and a description to compare by value."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.views: List[Any] = []
        self.has_hidden_parameters = False
        self._seen = set(map(id, modules))
        self._registered: Dict[int, int] = {}
        for number, (_, one) in enumerate(_named(modules)):
            self._registered.setdefault(id(one), number)
        self._num_left = MOST_WATCHED
        self.described = [self._module(one) for one in modules]

    def _module(self, module: nn.Module) -> Hashable:
        own = vars(module)
        held = (module._parameters, module._buffers, module._modules)
        self.views += [one.values() for one in held]
        parts = tuple((name, id(part)) for name, part in module._modules.items())
        plain = [(name, self._value(own[name], 0)) for name in own if name not in _STANDARD | _DERIVED]
        return (parts, *sorted(plain, key=operator.itemgetter(0)))

    def _value(self, value: Any, depth: int) -> Hashable:
        """What is compared: plain values themselves, others by identity, and what they hold."""
        if isinstance(value, _PLAIN):
            return (type(value), repr(value))  # as text, where -0.0 is not 0.0 and nan is nan
        if id(value) in self._registered:
            return ("registered", self._registered[id(value)])
        if isinstance(value, nn.Parameter):
            self.has_hidden_parameters = True
        if isinstance(value, torch.Tensor) or id(value) in self._seen or depth > _DEEPEST:
            return id(value)
        return self._held_by(value, depth)

    def _held_by(self, value: Any, depth: int) -> Hashable:
        if type(value) is tuple or isinstance(value, torch.Size):
            return (tuple, *self._values(value, depth))
        self._seen.add(id(value))
        if isinstance(value, (list, set, frozenset)):
            return (type(value), *self._watched(value, depth))
        if isinstance(value, dict):
            return (type(value), self._watched(value.keys(), depth), self._watched(value.values(), depth))
        if isinstance(value, type) or (callable(value) and not isinstance(value, nn.Module)):
            return id(value)
        own = getattr(value, "__dict__", None)
        if type(own) is not dict:
            return id(value)
        return (id(value), tuple(own), self._watched(own.values(), depth))

    def _watched(self, values: Any, depth: int) -> Tuple[Hashable, ...]:
        if len(values) > self._num_left:
            return (len(values),)
        self._num_left -= len(values)
        self.views.append(values)
        return self._values(values, depth)

    def _values(self, values: Any, depth: int) -> Tuple[Hashable, ...]:
        return tuple([self._value(one, depth + 1) for one in values])


def _num_last(own: Dict[str, Any]) -> int:
    """How many entries there are from the first that not every module has."""
    return len(own) - next((n for n, name in enumerate(own) if name not in _STANDARD), len(own))


def _described_tensors(modules: Sequence[nn.Module]) -> Tuple[Hashable, ...]:
    """Parameters and buffers by name: their kinds, and which of them are one."""
    first: Dict[int, int] = {}
    found: List[Hashable] = []
    for number, (name, one) in enumerate(_named(modules)):
        which = first.setdefault(id(one), number)
        found.append((name, None) if one is None else (name, which, *_kind(one)))
    return tuple(found)


def _kind(tensor: torch.Tensor) -> Tuple[Hashable, ...]:
    if tensor.layout != torch.strided or nn.parameter.is_lazy(tensor):
        return (id(tensor),)
    return (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)


def _named(modules: Sequence[nn.Module]) -> Iterator[Tuple[str, Any]]:
    for part in modules:
        yield from part._parameters.items()
        yield from part._buffers.items()


def why_not(module: nn.Module) -> str:
    """Why this module must run itself, whatever its inputs are; empty when nothing speaks against a plan."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device.type != "cpu":
            return f"the model is on {tensor.device.type}, whose operators do not run on CPU threads"
    if _version() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"torch {torch.__version__} is older than {oldest}, whose export keeps operators whole"
    kind = type(module).__name__
    if isinstance(module, nn.parallel.DistributedDataParallel) or "FullyShardedDataParallel" in kind:
        return f"{kind} does more than its operators show; give its module to malleable first"
    if isinstance(module, torch.jit.ScriptModule):
        return "a scripted module cannot be captured"
    if hasattr(module, "_orig_mod"):
        return "a compiled module runs its own code"
    return ""


def _version() -> Tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return tuple(int(part) for part in found.groups()) if found else OLDEST
