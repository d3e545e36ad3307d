"""Builds the C++ part of the measured side before any timing, once per interpreter and torch version."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from corewise.cache_folder import find_shared_builds, open_cache_folder
from corewise.launch.environment import strip_controlled_variables
from corewise.launch.supervision.supervised_command import SupervisedCommand
from corewise.launch.worker_commands import build_compile_command, should_build_native
from corewise.run.machine_view import Interpreter

# Longer than the time limit that the builder gives its compiler.
BUILD_LIMIT_S = 330.0
GRACE_S = 2.0


def build_once(
    interpreter: Interpreter,
    worker: Path,
    before: Callable[[], None],
    cache: Path | None = None,
    limit_s: float = BUILD_LIMIT_S,
) -> bool:
    """Build the C++ part unless that was tried before; `before` is called first. A failure is ignored.

    Returns:
        False if the time limit ended the build; the next call tries again.
    """
    if not should_build_native():
        return True
    # The builder's messages are not shown, so a refused folder is reported here.
    find_shared_builds()
    tried = _find_marker(interpreter, worker, cache)
    # os.path.exists returns False for an unreadable folder, where Path.exists raises.
    if os.path.exists(tried):
        return True
    before()
    with suppress(OSError):
        if not _build(build_compile_command(interpreter.command, worker), limit_s):
            return False
    # Without this file, the next run tries again.
    with suppress(OSError):
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()
    return True


def _find_marker(interpreter: Interpreter, worker: Path, cache: Path | None) -> Path:
    """Return the path of the file that says that the build was tried."""
    return (cache or open_cache_folder()) / f"native-tried-{_hash_toolchain(interpreter, worker)}"


def _build(command: Sequence[str], limit_s: float) -> bool:
    """Run the builder and return whether it ended in time.

    If we are interrupted, it removes its files and ends with all compilers.
    """
    builder = SupervisedCommand(command, env=strip_controlled_variables(os.environ))
    try:
        return builder.wait(limit_s) or limit_s >= BUILD_LIMIT_S
    finally:
        builder.end(GRACE_S)


def _hash_toolchain(interpreter: Interpreter, worker: Path) -> str:
    parts = (*interpreter.command, interpreter.version, interpreter.packages.get("torch", ""), worker.name)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
