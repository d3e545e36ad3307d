"""The terminal that tables are drawn on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 200  # a file or a pager needs no column dropped


def make_console(*, markup: bool = False) -> "Console":
    """A console on standard output that never fails over a letter the terminal cannot show."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with code 1

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return PipedConsole(highlight=False, markup=markup, emoji=False, width=_PIPED_WIDTH if piped else None)


@contextmanager
def busy(doing: str) -> Iterator[None]:
    """Say on a terminal what is being done for as long as it lasts; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(doing)):
        yield
