"""Locks that reserve a folder of tiles for one product and one process at a time.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Mapping, TextIO

from corewise.measured.runtimes.base import Infeasible, NotNow

MANIFEST = "product.json"
LOCK = "product.lock"


def claim_folder(folder: Path, product: Mapping[str, Any]) -> TextIO:
    """Lock a folder until the returned file is closed; raise Infeasible if it is in use."""
    _make_folder(folder)
    lock = _lock_folder(folder)
    try:
        _write_manifest(folder, json.dumps(product, sort_keys=True))
    except BaseException:
        lock.close()
        raise
    return lock


def _make_folder(folder: Path) -> None:
    """Create the folder; raise Infeasible if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        raise Infeasible(
            f"tiled_product: cannot write tiles to {folder}: {problem.strerror}; name another folder"
        ) from problem


def _lock_folder(folder: Path) -> TextIO:
    # The file stays open as long as the lock is held.
    file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise NotNow(f"tiled_product: {holder} is using {folder}; wait for it, or name another folder") from None
    # The file system does not support locks.
    except OSError:
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {os.uname().nodename}")
    file.flush()
    return file


def _write_manifest(folder: Path, text: str) -> None:
    """Write the manifest; raise Infeasible if the folder holds tiles of another product.

    A manifest without tiles is left over from a refused run and is overwritten.
    """
    manifest = folder / MANIFEST
    existing = manifest.read_text(encoding="utf-8") if manifest.exists() else ""
    if existing == text:
        return
    if existing and any(folder.glob("*.tile")):
        raise Infeasible(
            f"tiled_product: {folder} holds tiles of another product ({existing} instead of {text}); "
            "name another folder, or remove this one"
        )
    aside = folder / f".{MANIFEST}.{os.getpid()}"
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, manifest)
