"""Where Corewise keeps what it can make again."""

import os
from pathlib import Path


def default_cache() -> Path:
    """The folder, below the user's own cache; it need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "corewise"
