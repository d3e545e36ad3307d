"""The script that draws charts in a page; built once per version of vl-convert and cached."""

import contextlib
import hashlib
from importlib.metadata import version
from pathlib import Path

from corewise.cache_folder import open_cache_folder
from corewise.errors import UserError
from corewise.store.atomic_files import write_atomically
from corewise.trusted_paths import is_trusted_file

_EXPOSED = "window.vegaEmbed = vegaEmbed;"


def build_vega_script() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script without imports; building takes a second."""
    try:
        path = open_cache_folder() / f"vega-{version('vl-convert-python')}.js"
    # No folder is safe from other users.
    except OSError:
        return _bundle_script()
    cached = _read_cached(path)
    if cached is not None:
        return cached
    script = _bundle_script()
    # Without a writable cache folder, every page costs a second more.
    with contextlib.suppress(OSError, UserError):
        # If the file is a link of another user, its target must stay unchanged.
        path.unlink(missing_ok=True)
        with write_atomically(path) as aside:
            aside.write_text(f"{_compute_digest(script)}\n{script}", encoding="utf-8", newline="")
    return script


def _bundle_script() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(_EXPOSED)


def _read_cached(path: Path) -> str | None:
    """Return the script of an earlier call, or None if the file is missing, damaged or of another user."""
    if not is_trusted_file(path):
        return None
    try:
        with open(path, encoding="utf-8", newline="") as file:
            digest, _, script = file.read().partition("\n")
    except (OSError, ValueError):
        return None
    return script if digest == _compute_digest(script) else None


def _compute_digest(script: str) -> str:
    return hashlib.sha256(f"{_EXPOSED}\n{script}".encode()).hexdigest()
