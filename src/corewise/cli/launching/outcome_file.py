"""Write the file of `corewise launch --json` completely or not at all; devices and pipes are written to."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Paths of files that a process has open.
OPEN_FILE_PREFIXES = ("/dev/fd/", "/dev/std", "/proc/")


def can_write_outcome(path: Path) -> bool:
    """Return whether the path looks writable before the launch."""
    if path.is_dir():
        return False
    if _is_stream(path):
        return os.access(path, os.W_OK)
    return os.access(_resolve_link(path).parent, os.W_OK)


def write_outcome(path: Path, outcome: Mapping[str, Any]) -> None:
    """Write the outcome: directly to a stream, else to a temporary file that replaces the target."""
    if not _is_stream(path):
        from corewise.measured.trial import write_json_atomically

        write_json_atomically(_resolve_link(path), outcome)
        return
    import json

    # Without O_NONBLOCK, opening a pipe without a reader would block forever.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with open(descriptor, "w", encoding="utf-8") as out:
        json.dump(outcome, out, separators=(",", ":"), allow_nan=False)


def _is_stream(path: Path) -> bool:
    return path.exists() and (not path.is_file() or str(path.absolute()).startswith(OPEN_FILE_PREFIXES))


def _resolve_link(path: Path) -> Path:
    return Path(os.path.realpath(path))
