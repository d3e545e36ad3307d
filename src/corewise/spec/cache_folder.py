"""Where Corewise keeps what it can make again."""

import os
import tempfile
from pathlib import Path


def default_cache() -> Path:
    """The folder, below the user's own cache; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "corewise"
    except RuntimeError:  # there is no home
        return Path(tempfile.gettempdir()) / f"corewise-{os.getuid()}"
