"""Files that are whole or not there: written aside, then renamed in one step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corewise.spec.errors import UserError
from corewise.store.writer import is_full

NAME_ANOTHER = "name another file with -o"


@contextmanager
def written_aside(out: Path, advice: str = NAME_ANOTHER) -> Iterator[Path]:
    """A path to write to; a plain file then takes its name in one step, a device is written straight.

    When anything fails, what stood under the name before still stands there; that a file could not be written
    is told as the user's mistake, and names the file; `advice` says what to do about it.
    """
    try:
        if out.exists() and not out.is_file():
            yield out
            return
        final = out.resolve()
        aside = final.with_name(f".{final.name}.{os.getpid()}.part")
        try:
            yield aside
            os.replace(aside, final)
        finally:
            aside.unlink(missing_ok=True)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        raise
    except OSError as error:
        raise cannot_write(out, error, advice) from error


def cannot_write(out: Path, error: OSError, advice: str = NAME_ANOTHER) -> UserError:
    """What to tell the user when a file could not be written."""
    if is_full(error):
        return UserError(f"{out} cannot be written: the disk is full; free space, or {advice}")
    return UserError(f"{out} cannot be written: {error.strerror or error}; {advice}")
