"""Typer classes of the verbs: help layout, and no error if the reader of a pipe closes it."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import which
from types import FrameType
from typing import Any, NoReturn

from typer import Exit, core
from typer.core import TyperCommand, TyperGroup

from corewise.cli.help_layout import hide_flag_types, split_examples, unwrap_docstring

# The command begins at the first word that is not an option; its own options are not parsed.
COMMAND_LAST = {"allow_interspersed_args": False}
COMMAND_HINT = "put the command of a script after --, as in corewise tune -- python train.py"


@contextmanager
def ignore_closed_pipe() -> Iterator[None]:
    """Discard further output once the reader of standard output has left, as in `corewise show | head`."""
    try:
        yield
        # Python has no standard output object if the descriptor was closed at the start.
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


class Verb(TyperCommand):
    """One verb of the command line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; the examples come last, where a terminal leaves them in view."""
        if self.rich_markup_mode and getattr(core, "HAS_RICH", True) and self.help:
            self.help, examples = split_examples(unwrap_docstring(self.help))
            self.epilog = examples or self.epilog
        hide_flag_types(self.get_params(ctx))
        _write_help(super().format_help, ctx, formatter)


class VerbGroup(TyperGroup):
    """All verbs. A verb whose reader left exits with 0; typer's 1 would look like a failed trial."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        hide_flag_types(self.get_params(ctx))
        _write_help(super().format_help, ctx, formatter)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options before the verb; one of them may print the help."""
        with ignore_closed_pipe():
            return super().make_context(*args, **options)
        raise Exit

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        with ignore_closed_pipe():
            return super().invoke(ctx)


def _write_help(write: Callable[[Any, Any], None], ctx: Any, formatter: Any) -> None:
    try:
        write(ctx, formatter)
    except SystemExit:
        # Rich exits if the pipe is closed.
        raise BrokenPipeError from None


def discard_output() -> None:
    """Redirect outputs that nobody reads to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(null, stream.fileno())
    os.close(null)


def interrupt_on(*signals: signal.Signals) -> None:
    """Handle signals like Ctrl-C, except those that are ignored (nohup)."""
    for number in signals:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class TuneVerb(Verb):
    """The verb `tune`: an unknown option may belong to a script, so the error explains `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        is_command = any(which(word) for word in args if not word.startswith("-"))
        try:
            return super().parse_args(ctx, args)
        except Exception as problem:
            # The class of this error has no public name.
            is_unknown_option = hasattr(problem, "possibilities")
            if is_command and is_unknown_option:
                problem.message = f"{problem}; {COMMAND_HINT}"  # type: ignore[attr-defined]
            raise
