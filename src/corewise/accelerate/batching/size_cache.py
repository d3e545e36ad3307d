"""Sizes of images that were read before, kept in the user's cache folder and keyed by path, size and time of change.

Measured side: standard library and numpy only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from corewise.cache_folder import open_cache_folder
from corewise.owned_files import build_owned_prefix, remove_abandoned
from corewise.trusted_paths import is_trusted_file

# Raise it when the columns change their meaning.
FORMAT_VERSION = 1
_FOLDER = "image-sizes"
_TEMPORARY = ".image-sizes"


class SizeCache:
    """What earlier scans of one folder found. A cache that cannot be used is like an empty one."""

    def __init__(self, root: str, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._file = _find_file(root)
        self._rows: Dict[bytes, int] = {}
        self._table: Optional[NDArray[np.int64]] = None
        if self._file is not None:
            self._load(self._file)

    def find(self, name: bytes, num_bytes: int, changed_ns: int) -> Optional[NDArray[np.int64]]:
        """Return the columns of an unchanged file, or None."""
        row = self._rows.get(name)
        if row is None or self._table is None:
            return None
        values = self._table[row]
        return values[2:] if values[0] == num_bytes and values[1] == changed_ns else None

    def store(self, names: Sequence[bytes], table: NDArray[np.int64]) -> None:
        """Replace the cached rows: for each name the size of the file, its time of change, and the columns."""
        if self._file is None:
            return
        text = np.frombuffer(b"\0".join(names), dtype=np.uint8)
        with contextlib.suppress(OSError):
            # A process that was killed could not remove its file.
            remove_abandoned(_TEMPORARY, self._file.parent)
            handle, aside = tempfile.mkstemp(".part", build_owned_prefix(_TEMPORARY), self._file.parent)
            try:
                with os.fdopen(handle, "wb") as out:
                    header = np.frombuffer(self._describe_format(), dtype=np.uint8)
                    np.savez(out, format=header, names=text, table=table)
                os.replace(aside, self._file)
            except BaseException:
                Path(aside).unlink()
                raise

    def _describe_format(self) -> bytes:
        return f"{FORMAT_VERSION} {' '.join(self._columns)}".encode()

    def _load(self, file: Path) -> None:
        if not is_trusted_file(file):
            return
        # A damaged cache is replaced after the scan.
        with contextlib.suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            with np.load(file, allow_pickle=False) as data:
                header, text, table = data["format"], data["names"], data["table"]
            names = text.tobytes().split(b"\0")
            is_valid = table.dtype == np.int64 and table.shape == (len(names), 2 + len(self._columns))
            if header.tobytes() == self._describe_format() and is_valid:
                self._rows = {name: row for row, name in enumerate(names)}
                self._table = table


def _find_file(root: str) -> Optional[Path]:
    """Return the cache file of a folder, or None if no folder for caches is safe."""
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
    try:
        return open_cache_folder(_FOLDER) / f"{digest}.npz"
    except OSError:
        return None
