"""Build the C++ collectives as a plain library on first use, cache it, and load it through ctypes.

The library includes no header of torch or Python, so it builds in seconds.

Measured side: standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import pkgutil
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Dict, Iterator, List, Optional

from corewise.accelerate.unsupported import Unsupported
from corewise.cache_folder import find_cache_folder, find_shared_builds, open_builds_folder, open_cache_folder
from corewise.owned_files import build_owned_prefix, remove_abandoned
from corewise.trusted_paths import is_trusted_file

SOURCE = "allreduce.cpp"
NAME = "libcorewise_allreduce.so"
# The folder of builds within a cache.
FOLDER = "collectives"
# The name of the folder of a build in progress.
BUILDING = ".building"
MAX_BUILD_S = 120
_lock = threading.Lock()
_loaded: Dict[str, ctypes.CDLL] = {}


def load_library() -> ctypes.CDLL:
    """Load the library, building it if necessary; raise Unsupported with the reason."""
    with _lock:
        if "library" not in _loaded:
            path = build_if_missing()
            try:
                _loaded["library"] = _declare_functions(ctypes.CDLL(str(path)))
            except OSError as problem:
                raise Unsupported(f"{path} cannot be loaded: {problem}; remove it to build it again") from problem
        return _loaded["library"]


def build_compile_command(compiler: str, source: str, target: str) -> List[str]:
    """Build the command that compiles the library."""
    flags = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-shared")
    return [compiler, *flags, source, "-o", target]


def _declare_functions(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, size, number, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_double
    library.corewise_segment_bytes.restype = size
    library.corewise_segment_bytes.argtypes = [number, size]
    library.corewise_open.restype = pointer
    library.corewise_open.argtypes = [pointer, number, number, size, ctypes.POINTER(number), real]
    library.corewise_close.restype = None
    library.corewise_close.argtypes = [pointer]
    library.corewise_fail.restype = None
    library.corewise_fail.argtypes = [pointer]
    library.corewise_culprit.restype = number
    library.corewise_culprit.argtypes = [pointer]
    library.corewise_run.restype = number
    library.corewise_run.argtypes = [pointer, number, pointer, pointer, size, number, real, number, number]
    library.corewise_triad.restype = None
    library.corewise_triad.argtypes = [pointer, pointer, pointer, size]
    return library


def build_if_missing() -> Path:
    """Return the library of these sources, and build it if no folder has it; raise Unsupported with the reason."""
    if sys.platform != "linux":
        raise Unsupported(f"shared-memory collectives need Linux, not {sys.platform}")
    source = pkgutil.get_data("corewise.accelerate.collectives", SOURCE)
    if source is None:
        raise Unsupported(f"{SOURCE} is not among Corewise's files")
    key = hashlib.sha256(platform.machine().encode() + b"\0" + source).hexdigest()[:20]
    for folder in _list_build_folders(key):
        if is_trusted_file(folder / NAME):
            return folder / NAME
    compiler = _find_compiler()
    if compiler is None:
        raise Unsupported("no C++ compiler found; install g++ or clang++, or set CXX")
    try:
        folder = open_builds_folder(f"{FOLDER}/{key}")
        with _lock_folder(folder):
            # Another process may have built it since.
            if not is_trusted_file(folder / NAME):
                _compile(compiler, source, folder / NAME)
            return folder / NAME
    except OSError as problem:
        raise Unsupported(
            f"{problem.filename or 'the build'} cannot be written: {problem.strerror or problem}"
        ) from problem


def _list_build_folders(key: str) -> Iterator[Path]:
    shared = find_shared_builds()
    if shared is not None:
        yield shared / FOLDER / key
    yield find_cache_folder() / FOLDER / key
    with contextlib.suppress(OSError):
        yield open_cache_folder(FOLDER) / key


def _compile(compiler: str, source: bytes, target: Path) -> None:
    # A builder that was killed could not remove its folder.
    remove_abandoned(BUILDING, target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=build_owned_prefix(BUILDING)) as place:
        (Path(place) / SOURCE).write_bytes(source)
        aside = Path(place) / NAME
        command = build_compile_command(compiler, str(Path(place) / SOURCE), str(aside))
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=MAX_BUILD_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unsupported(f"{compiler} took longer than {MAX_BUILD_S} s") from None
        if done.returncode != 0:
            lines = done.stdout.decode(errors="replace").splitlines()
            errors = [line.strip() for line in lines if "error" in line.lower()]
            raise Unsupported(f"{compiler} failed: {(errors or lines or ['no message'])[0][:300]}")
        # The compiler follows the umask, which may let the group write, or other users not read.
        aside.chmod(0o755)
        os.replace(aside, target)


def _find_compiler() -> Optional[str]:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            return path
    return None


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one process of this machine build at a time; without file locks several may build."""
    with open(folder / ".lock", "w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
