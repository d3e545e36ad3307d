"""Let methods of a wrapped module, such as `generate`, call the wrapper where they call the module.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from typing import Any, Callable, Iterator, Optional, Protocol

from torch import nn


def is_routed_method(module: nn.Module, name: str, attribute: Any) -> bool:
    """Return whether an attribute is a method of the module's class that may call the module.

    Methods of every module (state_dict, parameters) do not. Generators and coroutines run after they return.
    """
    if not isinstance(attribute, types.MethodType) or attribute.__self__ is not module or hasattr(nn.Module, name):
        return False
    function = inspect.unwrap(attribute.__func__)
    return not (inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function))


class Wrapper(Protocol):
    """What wraps the module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def explain_plain_execution(self) -> str: ...


class CallRouter:
    """Redirects calls of a module to its wrapper while one of the module's methods runs.

    Only the thread that runs the method is redirected. While the wrapper runs, the module is unchanged.
    """

    def __init__(self, module: nn.Module, wrapper: Callable[[], Optional[Wrapper]]) -> None:
        # The wrapper holds the router, so the router holds it weakly.
        self._module, self._find_wrapper = module, wrapper
        self._lock = threading.Lock()
        # Methods that run now, and calls of the target that they wait for, of all threads.
        self._num_methods = self._num_inside = 0
        self._local = threading.local()

    @property
    def is_in_method(self) -> bool:
        """Whether this thread runs a method of the module."""
        return getattr(self._local, "depth", 0) > 0

    @contextlib.contextmanager
    def route_calls(self) -> Iterator[None]:
        """Redirect the calls of this thread in the context."""
        self._local.depth = getattr(self._local, "depth", 0) + 1
        self._update(methods=1)
        try:
            yield
        finally:
            self._local.depth -= 1
            self._update(methods=-1)

    def _update(self, methods: int = 0, inside: int = 0) -> None:
        with self._lock:
            self._num_methods += methods
            self._num_inside += inside
            attributes = vars(self._module)
            is_wanted = self._num_methods > 0 and self._num_inside == 0
            current = attributes.get("forward")
            if is_wanted and current is None:
                attributes["forward"] = self._build_forward()
            # A forward that the user has set on the module stays.
            elif not is_wanted and getattr(current, "is_corewise_route", False):
                del attributes["forward"]

    def _build_forward(self) -> Callable[..., Any]:
        forward = self._module.forward

        @functools.wraps(forward)
        def forward_routed(*args: Any, **kwargs: Any) -> Any:
            wrapper = self._find_wrapper() if self.is_in_method else None
            # Hooks of the module have run already, and the wrapper would run them again.
            if wrapper is None or wrapper.explain_plain_execution():
                return forward(*args, **kwargs)
            self._update(inside=1)
            try:
                return wrapper(*args, **kwargs)
            finally:
                self._update(inside=-1)

        forward_routed.is_corewise_route = True  # type: ignore[attr-defined]
        return forward_routed
