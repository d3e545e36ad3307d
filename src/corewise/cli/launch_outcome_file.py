"""The file that `corewise launch --json` writes, whole or not at all; a device or pipe stays one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPEN_ALREADY = ("/dev/fd/", "/dev/std", "/proc/")  # names of what a process has open


def takes_outcome(path: Path) -> bool:
    """Whether a file can be written there, as far as one can tell beforehand."""
    if path.is_dir():
        return False
    if _is_stream(path):
        return os.access(path, os.W_OK)
    return os.access(_target(path).parent, os.W_OK)


def write_outcome(path: Path, outcome: Mapping[str, Any]) -> None:
    """Write it: to a stream as it is, else aside and renamed, a link's target in place of the link."""
    if not _is_stream(path):
        from corewise.spec.trial import write_json_aside

        write_json_aside(_target(path), outcome)
        return
    import json

    # A pipe that nobody reads is refused, where a plain open would wait for a reader.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    os.set_blocking(descriptor, True)
    with open(descriptor, "w", encoding="utf-8") as out:
        json.dump(outcome, out, separators=(",", ":"), allow_nan=False)


def _is_stream(path: Path) -> bool:
    return path.exists() and (not path.is_file() or str(path.absolute()).startswith(OPEN_ALREADY))


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))
