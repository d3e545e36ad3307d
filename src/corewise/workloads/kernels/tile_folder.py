"""A folder of tiles belongs to one product, and to one process at a time.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Mapping, TextIO

from corewise.runtimes.base import Infeasible, NotNow

MANIFEST = "product.json"
LOCK = "product.lock"


def claim_folder(folder: Path, described: Mapping[str, Any]) -> TextIO:
    """The hold on a folder, until it is closed; Infeasible where another process or product has it."""
    _make_folder(folder)
    hold = _hold(folder)
    try:
        _write_manifest(folder, json.dumps(described, sort_keys=True))
    except BaseException:
        hold.close()
        raise
    return hold


def _make_folder(folder: Path) -> None:
    """Makes the folder; Infeasible where no files can be kept there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as problem:
        raise Infeasible(
            f"tiled_product: no tiles can be kept in {folder}: {problem.strerror}; name another folder"
        ) from problem


def _hold(folder: Path) -> TextIO:
    file = open(folder / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 (it is open for as long as it is held)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise NotNow(
            f"tiled_product: {holder} is at work in {folder}; wait for it, or name another folder"
        ) from None
    except OSError:  # a file system without locks
        return file
    file.truncate(0)
    file.write(f"process {os.getpid()} on {os.uname().nodename}")
    file.flush()
    return file


def _write_manifest(folder: Path, text: str) -> None:
    """Writes what the folder holds; refuses one that holds another product.

    One without tiles holds none: whoever wanted it was refused.
    """
    manifest = folder / MANIFEST
    found = manifest.read_text(encoding="utf-8") if manifest.exists() else ""
    if found == text:
        return
    if found and any(folder.glob("*.tile")):
        raise Infeasible(
            f"tiled_product: {folder} holds tiles of another product ({found}, and not {text}); "
            "name another folder, or remove this one"
        )
    aside = folder / f".{MANIFEST}.{os.getpid()}"
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, manifest)
