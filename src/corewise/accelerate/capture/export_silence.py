"""Silence torch.export in the thread that calls it, without affecting the output of other threads.

Measured side: standard library and torch only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import warnings
from typing import Any, Callable, Iterator, List

_export_lock = threading.RLock()
# Maximum seconds that a call waits for an export in another thread.
_MAX_WAIT_S = 60.0
# The module of torch that prints the graph to stderr if an export fails.
_PRINTING_MODULE = "torch.export._trace"


def wait_for_export() -> None:
    """Wait until no other thread exports."""
    if _export_lock.acquire(timeout=_MAX_WAIT_S):
        _export_lock.release()


def _reset_in_child() -> None:
    global _export_lock
    # Another thread of the parent may hold the old lock.
    _export_lock = threading.RLock()


os.register_at_fork(after_in_child=_reset_in_child)


@contextlib.contextmanager
def export_quietly() -> Iterator[None]:
    """Enter a context without export's logs, prints and warnings; one thread at a time."""
    with _export_lock, warnings.catch_warnings(), _drop_logs(), _drop_prints():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _drop_logs() -> Iterator[None]:
    own_thread = threading.get_ident()
    all_loggers = list(logging.root.manager.loggerDict.items())
    loggers = [one for name, one in all_loggers if isinstance(one, logging.Logger) and _is_torch_logger(name)]

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != own_thread or not _is_torch_logger(record.name)

    muted: List[Any] = [*loggers, *(handler for one in loggers for handler in one.handlers)]
    for one in muted:
        one.addFilter(is_others)
    try:
        yield
    finally:
        for one in muted:
            one.removeFilter(is_others)


def _is_torch_logger(name: str) -> bool:
    return name.partition(".")[0] == "torch"


@contextlib.contextmanager
def _drop_prints() -> Iterator[None]:
    """Replace `print` in the one module of torch that prints."""
    try:
        names = vars(importlib.import_module(_PRINTING_MODULE))
    # This version of torch has no such module.
    except ImportError:
        names = {}
    own_thread, original = threading.get_ident(), names.get("print")
    plain_print: Callable[..., None] = original or print

    def print_elsewhere(*things: Any, **options: Any) -> None:
        if threading.get_ident() != own_thread:
            plain_print(*things, **options)

    names["print"] = print_elsewhere
    try:
        yield
    finally:
        if original is None:
            names.pop("print", None)
        else:
            names["print"] = original
