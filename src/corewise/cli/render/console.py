"""The terminal: a console for tables, and a status line for slow work."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Files and pagers are not as narrow as terminals: no column needs to be dropped.
_PIPED_WIDTH = 200


def make_console(*, markup: bool = False) -> "Console":
    """Return a console on standard output; characters that the terminal cannot show are replaced."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich would exit with code 1.
            raise BrokenPipeError

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PipedConsole(highlight=False, markup=markup, emoji=False, width=_PIPED_WIDTH if piped else None)


@contextmanager
def show_status(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; yields a function that changes the text."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))
