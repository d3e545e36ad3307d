"""A model's stand-in for torch.export, so that other threads may call the model while it is captured.

Measured side: standard library and torch only, Python 3.9. Export puts tensors without data in the place of
parameters, and patches what every module does when it is called. A stand-in with the same tensors takes the
first; the second is made to reach the thread that exports alone.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import types
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional

import torch
from torch import nn
from torch.fx import _symbolic_trace

_COPIED = (list, set, tuple, dict, collections.OrderedDict)


def mirrored(module: nn.Module) -> Optional[nn.Module]:
    """A module of the same tensors, whose parts and containers are its own; None where that cannot be."""
    memo: Dict[int, Any] = {}
    try:
        made: nn.Module = _mirrored(module, memo)
    except (TypeError, RecursionError, RuntimeError):  # parts that are made otherwise, or changed meanwhile
        return None
    return made


def _mirrored(thing: Any, memo: Dict[int, Any]) -> Any:
    if id(thing) in memo:
        return memo[id(thing)]
    if isinstance(thing, nn.Module):
        if isinstance(thing, torch.jit.ScriptModule) or any(
            vars(kind).get("__slots__") for kind in type(thing).__mro__
        ):
            raise TypeError(f"{type(thing).__name__} holds more than its attributes")
        made = memo[id(thing)] = object.__new__(type(thing))
        for name, value in list(vars(thing).items()):
            made.__dict__[name] = _mirrored(value, memo)
        return made
    if isinstance(thing, types.MethodType) and isinstance(thing.__self__, nn.Module):
        return types.MethodType(thing.__func__, _mirrored(thing.__self__, memo))
    if type(thing) not in _COPIED:
        return thing
    return _mirrored_container(thing, memo)


def _mirrored_container(thing: Any, memo: Dict[int, Any]) -> Any:
    if type(thing) is tuple:
        parts = [_mirrored(one, memo) for one in thing]
        is_same = all(one is two for one, two in zip(thing, parts))
        return thing if is_same else tuple(parts)
    made = memo[id(thing)] = type(thing)()
    if isinstance(thing, dict):
        made.update((key, _mirrored(value, memo)) for key, value in list(thing.items()))
    elif isinstance(thing, set):
        made.update(_mirrored(one, memo) for one in list(thing))
    else:
        made.extend(_mirrored(one, memo) for one in list(thing))
    return made


@contextlib.contextmanager
def patching_this_thread(watched: Collection[int], met: List[int]) -> Iterator[None]:
    """A context in which methods that torch.fx patches are patched for the tracing thread alone.

    Adds to `met` the ids of those modules among `watched` that this thread meets meanwhile.
    """
    plain: Optional[Callable[..., None]] = getattr(_symbolic_trace._Patcher, "patch_method", None)
    if plain is None:  # another version of torch
        yield
        return

    def patch_method(
        patcher: Any, cls: type, name: str, new: Callable[..., Any], *rest: Any, **options: Any
    ) -> None:
        mine, before = threading.get_ident(), getattr(cls, name)

        @functools.wraps(new)
        def called(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != mine:
                return before(*args, **kwargs)
            if args and id(args[0]) in watched:
                met.append(id(args[0]))
            return new(*args, **kwargs)

        plain(patcher, cls, name, called, *rest, **options)

    _symbolic_trace._Patcher.patch_method = patch_method  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        _symbolic_trace._Patcher.patch_method = plain  # type: ignore[method-assign]
