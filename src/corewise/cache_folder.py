"""The folder for files that Corewise can rebuild: the worker, compiled kernels, plans and the like.

Used by both sides and by the library that users call: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Optional

from corewise.trusted_paths import can_write, create_private_folder, explain_distrust, warn_once

# Names a folder with C++ builds, for images and shared installations. Ordinary users need not be able to write to it.
SHARED_BUILDS_VARIABLE = "COREWISE_NATIVE_CACHE"


def find_cache_folder() -> Path:
    """Return the user's cache folder, which need not exist or be safe: open_cache_folder checks it."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "corewise"
    except RuntimeError:
        # The user has no home folder.
        return Path(tempfile.gettempdir()) / f"corewise-{os.geteuid()}"


def open_cache_folder(name: str = "") -> Path:
    """Return a folder of the cache that this user can write to and nobody else can change; create it if missing.

    If the user's cache is no such folder, that is logged once, and a private folder below TMPDIR replaces it.

    Args:
        name: a folder within the cache; the cache itself if empty.

    Raises:
        OSError: there is no such folder.
    """
    folder = find_cache_folder() / name
    problem = create_own_folder(folder)
    if not problem:
        return folder
    # Later processes find the folder again, so they need not build everything again.
    private = Path(create_private_folder(f"corewise-cache-{os.geteuid()}-", reuse=True))
    warn_once(
        f"the cache {find_cache_folder()} is not used: {problem}. {private} replaces it. "
        "Make it a folder that only you can change, or set XDG_CACHE_HOME to one."
    )
    folder = private / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def create_own_folder(folder: Path, mode: int = 0o700) -> str:
    """Create the folder and its parents if missing; explain why we cannot use it alone, empty if we can."""
    try:
        for each in (*reversed(folder.parents), folder):
            # Unlike mkdir(parents=True), this gives every new folder the mode.
            if not each.exists():
                each.mkdir(mode=mode, exist_ok=True)
    except OSError as problem:
        return f"{problem.filename or folder} cannot be created: {problem.strerror}"
    return explain_distrust(folder) or ("" if can_write(folder) else f"{folder} cannot be written")


def find_shared_builds() -> Optional[Path]:
    """Return the folder that COREWISE_NATIVE_CACHE names; None if it is not set or someone else can change it."""
    named = os.environ.get(SHARED_BUILDS_VARIABLE)
    if not named:
        return None
    folder = Path(named)
    # The folder is created for the person who fills it.
    create_own_folder(folder, mode=0o755)
    problem = explain_distrust(folder)
    if problem:
        warn_once(
            f"{SHARED_BUILDS_VARIABLE} is not used: {problem}. Your cache replaces it. "
            "The folder must belong to you, to root or to the owner of this Python, and only they may write to it."
        )
        return None
    return folder


def open_builds_folder(name: str) -> Path:
    """Open the folder to build in: the shared one for the person who fills it, the user's cache for all others.

    Raises:
        OSError: there is no such folder.
    """
    shared = find_shared_builds()
    if shared is not None and not create_own_folder(shared / name, mode=0o755):
        return shared / name
    return open_cache_folder(name)
