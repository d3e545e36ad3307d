"""Build a stand-in of a model for torch.export, so that other threads may call the model meanwhile.

Measured side: standard library and torch only, Python 3.9. Export replaces parameters by tensors without
data, and patches what every module does when called. The stand-in with the same tensors absorbs the first;
the second is limited to the exporting thread.
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

_COPIED_TYPES = (list, set, tuple, dict, collections.OrderedDict)


def build_stand_in(module: nn.Module) -> Optional[nn.Module]:
    """Build a module with the same tensors but separate submodules and containers; None if impossible."""
    memo: Dict[int, Any] = {}
    try:
        stand_in: nn.Module = _copy_part(module, memo)
    # Some part is not built from its attributes, or changed during the copy.
    except (TypeError, RecursionError, RuntimeError):
        return None
    return stand_in


def _copy_part(original: Any, memo: Dict[int, Any]) -> Any:
    if id(original) in memo:
        return memo[id(original)]
    if isinstance(original, nn.Module):
        if isinstance(original, torch.jit.ScriptModule) or any(
            vars(base).get("__slots__") for base in type(original).__mro__
        ):
            raise TypeError(f"{type(original).__name__} holds more than its attributes")
        copy = memo[id(original)] = object.__new__(type(original))
        for name, value in list(vars(original).items()):
            copy.__dict__[name] = _copy_part(value, memo)
        return copy
    if isinstance(original, types.MethodType) and isinstance(original.__self__, nn.Module):
        return types.MethodType(original.__func__, _copy_part(original.__self__, memo))
    if type(original) not in _COPIED_TYPES:
        return original
    return _copy_container(original, memo)


def _copy_container(original: Any, memo: Dict[int, Any]) -> Any:
    if type(original) is tuple:
        parts = [_copy_part(one, memo) for one in original]
        is_unchanged = all(one is two for one, two in zip(original, parts))
        return original if is_unchanged else tuple(parts)
    copy = memo[id(original)] = type(original)()
    if isinstance(original, dict):
        copy.update((key, _copy_part(value, memo)) for key, value in list(original.items()))
    elif isinstance(original, set):
        copy.update(_copy_part(one, memo) for one in list(original))
    else:
        copy.extend(_copy_part(one, memo) for one in list(original))
    return copy


@contextlib.contextmanager
def patch_this_thread(watched: Collection[int], used_modules: List[int]) -> Iterator[None]:
    """Limit methods that torch.fx patches in this context to the calling thread.

    Adds to `used_modules` the ids of modules among `watched` that this thread calls in the context.
    """
    plain: Optional[Callable[..., None]] = getattr(_symbolic_trace._Patcher, "patch_method", None)
    # This version of torch has no such method.
    if plain is None:
        yield
        return

    def patch_method(patcher: Any, cls: type, name: str, new: Callable[..., Any], *rest: Any, **options: Any) -> None:
        own_thread, unpatched = threading.get_ident(), getattr(cls, name)

        @functools.wraps(new)
        def call_patched(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != own_thread:
                return unpatched(*args, **kwargs)
            if args and id(args[0]) in watched:
                used_modules.append(id(args[0]))
            return new(*args, **kwargs)

        plain(patcher, cls, name, call_patched, *rest, **options)

    _symbolic_trace._Patcher.patch_method = patch_method  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        _symbolic_trace._Patcher.patch_method = plain  # type: ignore[method-assign]
