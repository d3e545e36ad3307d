"""The C++ part of the measured side, built before anything is timed, once for an interpreter and a torch."""

import hashlib
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from corewise.engine.machine_view import Interpreter
from corewise.launcher.environment import inherited_environment
from corewise.launcher.local import build_command, may_build
from corewise.spec.cache_folder import default_cache

BUILD_LIMIT_S = 330.0  # more than the builder gives its compiler


def build_once(
    interpreter: Interpreter, worker: Path, before: Callable[[], None], cache: Path | None = None
) -> None:
    """Builds it unless that was tried before; `before` is called first. Without it all else still runs."""
    tried = (cache or default_cache()) / f"native-tried-{_digest(interpreter, worker)}"
    if not may_build() or os.path.exists(tried):  # which says no where the folder may not be looked into
        return
    before()
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            build_command(interpreter.words, worker),
            env=inherited_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    with suppress(OSError):  # then it is tried again the next time
        tried.parent.mkdir(parents=True, exist_ok=True)
        tried.touch()


def _digest(interpreter: Interpreter, worker: Path) -> str:
    parts = (*interpreter.words, interpreter.version, interpreter.packages.get("torch", ""), worker.name)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
