"""The verbs as typer runs them; a reader that leaves early, as in `corewise show | head`, is no failure."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typer import Exit, core
from typer.core import TyperCommand, TyperGroup

from corewise.cli.help_texts import drawn, without_types_of_flags


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Print what the reader of standard output still takes; the rest goes nowhere."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


class Verb(TyperCommand):
    """One verb."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        if self.rich_markup_mode and getattr(core, "HAS_RICH", True) and self.help:
            self.help = drawn(self.help)
        without_types_of_flags(self.get_params(ctx))
        _write_help(super().format_help, ctx, formatter)


class Verbs(TyperGroup):
    """The verbs; one whose reader left ends with code 0, where typer would say 1: a failure, a regression."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        without_types_of_flags(self.get_params(ctx))
        _write_help(super().format_help, ctx, formatter)

    def make_context(self, *words: Any, **options: Any) -> Any:
        """What the words before the verb ask for, which may be help."""
        with reader_may_leave():
            return super().make_context(*words, **options)
        raise Exit

    def invoke(self, ctx: Any) -> Any:
        """What the verb gives."""
        with reader_may_leave():
            return super().invoke(ctx)


def _write_help(write: Callable[[Any, Any], None], ctx: Any, formatter: Any) -> None:
    try:
        write(ctx, formatter)
    except SystemExit:  # what rich makes of a reader who left
        raise BrokenPipeError from None


def silence() -> None:
    """Send to nowhere what is still to be printed on an output that nobody reads."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
