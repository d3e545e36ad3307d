"""The folder for files that Corewise can rebuild: compiled kernels, plans and the like."""

import os
import tempfile
from pathlib import Path


def find_cache_folder() -> Path:
    """Return the cache folder, which need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "corewise"
    except RuntimeError:
        # The user has no home folder.
        return Path(tempfile.gettempdir()) / f"corewise-{os.getuid()}"
