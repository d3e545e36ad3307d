"""Typer classes of the verbs: help layout, a quiet end, and no process left behind."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import which
from typing import Any

from typer import Exit, core
from typer.core import TyperCommand, TyperGroup

from corewise import process_control
from corewise.cli.process.interrupts import compute_exit_code
from corewise.cli.render.help_layout import hide_flag_types, split_examples, unwrap_docstring
from corewise.measured.worker.descendants import END_LIMIT_S, find_children, kill_descendants

# The command begins at the first word that is not an option; its own options are not parsed.
COMMAND_LAST = {"allow_interspersed_args": False}
COMMAND_HINT = "put the command of a script after --, as in corewise tune -- python train.py"


@contextmanager
def ignore_closed_pipe() -> Iterator[None]:
    """End without an error if the reader of standard output has left, as in `corewise show | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The stream discards all that follows.
        pass


@contextmanager
def end_quietly() -> Iterator[None]:
    """Ignore a closed pipe; exit with one line if a signal interrupts the command."""
    try:
        with ignore_closed_pipe():
            yield
    except KeyboardInterrupt:
        print("corewise: interrupted", file=sys.stderr)
        sys.exit(compute_exit_code())


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
        with end_quietly():
            return super().make_context(*args, **options)
        raise Exit

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        with end_quietly():
            return super().invoke(ctx)


def _write_help(write: Callable[[Any, Any], None], ctx: Any, formatter: Any) -> None:
    try:
        write(ctx, formatter)
    except SystemExit:
        # Rich exits if the pipe is closed.
        raise BrokenPipeError from None


class MeasuringVerb(Verb):
    """A verb that starts processes which measure. None of their descendants outlives it.

    Keepers end them already. Should a keeper be killed, this process adopts what is left.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        earlier_children = find_children()
        process_control.adopt_orphans()
        try:
            return super().invoke(ctx)
        finally:
            kill_descendants(END_LIMIT_S, spared=earlier_children)


class TuneVerb(MeasuringVerb):
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
