"""Silence for torch.export in the thread that calls it; what other threads log and print stays.

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

_one_at_a_time = threading.RLock()
_LONGEST_S = 60.0  # that a call waits for another thread's export
_PRINTS_GRAPHS = "torch.export._trace"  # writes the graph of what it cannot take to stderr


def wait_for_export() -> None:
    """Returns when no other thread exports."""
    if _one_at_a_time.acquire(timeout=_LONGEST_S):
        _one_at_a_time.release()


def _forget_in_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()  # another thread of the parent may hold it


os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def quiet_export() -> Iterator[None]:
    """Without what export logs, prints and warns of models that fail; one thread at a time."""
    with _one_at_a_time, warnings.catch_warnings(), _without_logs(), _without_prints():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    mine = threading.get_ident()
    known = list(logging.root.manager.loggerDict.items())
    loggers = [one for name, one in known if isinstance(one, logging.Logger) and _is_torchs(name)]

    def is_others(record: logging.LogRecord) -> bool:
        return record.thread != mine or not _is_torchs(record.name)

    muted: List[Any] = [*loggers, *(handler for one in loggers for handler in one.handlers)]
    for one in muted:
        one.addFilter(is_others)
    try:
        yield
    finally:
        for one in muted:
            one.removeFilter(is_others)


def _is_torchs(name: str) -> bool:
    return name.partition(".")[0] == "torch"


@contextlib.contextmanager
def _without_prints() -> Iterator[None]:
    """Gives the one module of torch that prints a `print` of its own."""
    try:
        names = vars(importlib.import_module(_PRINTS_GRAPHS))
    except ImportError:  # another version of torch
        names = {}
    mine, had = threading.get_ident(), names.get("print")
    shown: Callable[..., None] = had or print

    def print_elsewhere(*things: Any, **options: Any) -> None:
        if threading.get_ident() != mine:
            shown(*things, **options)

    names["print"] = print_elsewhere
    try:
        yield
    finally:
        if had is None:
            names.pop("print", None)
        else:
            names["print"] = had
