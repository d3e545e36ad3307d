"""The script that draws charts in a page, made once for each version of vl-convert and kept."""

import contextlib
import hashlib
from importlib.metadata import version
from pathlib import Path

from corewise.spec.cache_folder import default_cache
from corewise.spec.errors import UserError
from corewise.store.aside import written_aside

_EXPOSED = "window.vegaEmbed = vegaEmbed;"


def vega_script() -> str:
    """Vega, Vega-Lite and vega-embed as one script without imports; making it takes a second."""
    try:
        path = default_cache() / f"vega-{version('vl-convert-python')}.js"
    except RuntimeError:  # nobody's home folder
        return _made()
    kept = _kept(path)
    if kept is not None:
        return kept
    script = _made()
    with contextlib.suppress(OSError, UserError):  # a folder that cannot be written costs a second each time
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            aside.write_text(f"{_digest(script)}\n{script}", encoding="utf-8", newline="")
    return script


def _made() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(_EXPOSED)


def _kept(path: Path) -> str | None:
    """The script of an earlier call, if the file is whole."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            digest, _, script = file.read().partition("\n")
    except (OSError, ValueError):
        return None
    return script if digest == _digest(script) else None


def _digest(script: str) -> str:
    return hashlib.sha256(f"{_EXPOSED}\n{script}".encode()).hexdigest()
