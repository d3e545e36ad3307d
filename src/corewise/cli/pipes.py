"""Readers that leave before all is printed, as in `corewise show | head`: no failure of ours."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperGroup


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print what the reader of standard output still takes; the rest goes nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


class Verbs(TyperGroup):
    """The verbs; one whose reader left ends with code 0, where typer would say 1: a failure, a regression."""

    def invoke(self, ctx: Any) -> Any:
        """What the verb gives."""
        with reader_may_leave():
            return super().invoke(ctx)


def silence() -> None:
    """Send to nowhere what is still to be printed on an output that nobody reads."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
