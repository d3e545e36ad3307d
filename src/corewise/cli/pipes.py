"""Readers that leave before all is printed, as in `corewise show | head`: no failure of ours."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from typer import Exit
from typer.core import TyperCommand, TyperGroup


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print what the reader of standard output still takes; the rest goes nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


class _Helpful(TyperCommand if TYPE_CHECKING else object):
    """What rich ends with code 1 when the reader of a help leaves is told as any other output's."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        try:
            super().format_help(ctx, formatter)
        except SystemExit:
            raise BrokenPipeError from None


class Verb(_Helpful, TyperCommand):
    """One verb."""


class Verbs(_Helpful, TyperGroup):
    """The verbs; one whose reader left ends with code 0, where typer would say 1: a failure, a regression."""

    def make_context(self, *words: Any, **options: Any) -> Any:
        """What the words before the verb ask for, which may be help."""
        with reader_may_leave():
            return super().make_context(*words, **options)
        raise Exit

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
