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


def build_once(interpreter: Interpreter, worker: Path, before: Callable[[], None], cache: Path | None = None) -> None:
    """Build the C++ part unless that was tried before; `before` is called first. A failure is ignored."""
    if not should_build_native():
        return
    # The builder's messages are not shown, so a refused folder is reported here.
    find_shared_builds()
    tried = (cache or open_cache_folder()) / f"native-tried-{_hash_toolchain(interpreter, worker)}"
    # os.path.exists returns False for an unreadable folder, where Path.exists raises.
    if os.path.exists(tried):
        return
    before()
    with suppress(OSError):
        _build(build_compile_command(interpreter.command, worker))
    # Without this file, the next run tries again.
    with suppress(OSError):
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()


def _build(command: Sequence[str]) -> None:
    """Run the builder; if we are interrupted, it removes its files and ends with all compilers."""
    builder = SupervisedCommand(command, env=strip_controlled_variables(os.environ))
    try:
        builder.wait(BUILD_LIMIT_S)
    finally:
        builder.end(GRACE_S)


def _hash_toolchain(interpreter: Interpreter, worker: Path) -> str:
    parts = (*interpreter.command, interpreter.version, interpreter.packages.get("torch", ""), worker.name)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
