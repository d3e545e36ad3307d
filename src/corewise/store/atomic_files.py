"""Write files atomically: to a temporary name first, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corewise.errors import UserError
from corewise.store.line_writer import is_full

NAME_ANOTHER_FILE = "name another file with -o"


@contextmanager
def write_atomically(out: Path, advice: str = NAME_ANOTHER_FILE) -> Iterator[Path]:
    """Yield a path to write to, then rename it to `out` in one step; a device is written directly.

    If anything fails, the previous file stays unchanged.

    Args:
        advice: what the user should do if the file cannot be written.

    Raises:
        UserError: if the file cannot be written.
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
    except BrokenPipeError:
        # The reader of a pipe has left, which is not an error.
        raise
    except OSError as error:
        raise explain_write_error(out, error, advice) from error


def explain_write_error(out: Path, error: OSError, advice: str = NAME_ANOTHER_FILE) -> UserError:
    """Return the error for a file that cannot be written."""
    if is_full(error):
        return UserError(f"{out} cannot be written: the disk is full; free space, or {advice}")
    return UserError(f"{out} cannot be written: {error.strerror or error}; {advice}")
