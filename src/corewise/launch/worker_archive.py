"""Packs the measured side into one zipapp that runs under Python 3.9 or newer."""

import fcntl
import hashlib
import os
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path

from corewise.cache_folder import open_cache_folder
from corewise.errors import UserError
from corewise.owned_files import build_owned_prefix, remove_abandoned
from corewise.trusted_paths import explain_distrust, is_trusted_file

PACKAGE = Path(__file__).resolve().parent.parent
# The parts that travel to a node. They use only the standard library, numpy and one framework.
MEASURED_FILES = (
    *("__init__.py", "cache_folder.py", "owned_files.py", "process_control.py", "shared_cores.py"),
    "trusted_paths.py",
)
MEASURED_FOLDERS = ("measured", "accelerate", "cluster")
# C++ sources are compiled on the node.
COMPILED_PATTERNS = ("*.cpp", "*.h")
# Problem sets that a study selects by name.
PROBLEM_FILES = "measured/workloads/primitives/problems/*.txt"
# A fixed time stamp, so equal sources give equal bytes.
FIXED_TIME = (2020, 1, 1, 0, 0, 0)
# Each version of Corewise adds one worker to the cache.
MAX_CACHED_WORKERS = 8
# A worker counts as unused after one day.
UNUSED_S = 86400.0
# Workers that this process may start, each with the descriptor of its lock.
_held: dict[Path, int] = {}


def list_measured_sources(package: Path = PACKAGE) -> list[Path]:
    """List the Python files of the measured side, relative to the package, in a fixed order."""
    found = [Path(name) for name in MEASURED_FILES]
    for folder in MEASURED_FOLDERS:
        found += [path.relative_to(package) for path in sorted((package / folder).rglob("*.py"))]
    return found


def list_native_sources(package: Path = PACKAGE) -> list[Path]:
    """List the C++ sources and problem files that travel with the measured side."""
    folder = package / "accelerate"
    found = [*package.glob(PROBLEM_FILES), *(path for pattern in COMPILED_PATTERNS for path in folder.rglob(pattern))]
    return sorted(path.relative_to(package) for path in found)


def build_worker(cache: Path | None = None, package: Path = PACKAGE) -> Path:
    """Return the path of a zipapp of the measured side; build it unless the cache holds this content.

    Only this user, root and the owner of the interpreter can change the file.

    Raises:
        UserError: there is no folder that is safe from other users.
    """
    travelling = [*list_measured_sources(package), *list_native_sources(package)]
    sources = [(path, (package / path).read_bytes()) for path in travelling]
    digest = hashlib.sha256()
    for path, data in sources:
        digest.update(f"{path}\0{len(data)}\0".encode() + data)
    name = f"worker-{digest.hexdigest()[:16]}.pyz"
    try:
        target = _find_or_build(cache or open_cache_folder(), name, sources)
    except OSError as problem:
        where = problem.filename or "the worker"
        raise UserError(
            f"{where} cannot be written: {problem.strerror or problem}; set XDG_CACHE_HOME to a writable folder"
        ) from problem
    refusal = explain_distrust(target)
    if refusal:
        raise UserError(f"the worker {target} is not run: {refusal}")
    return target


def _find_or_build(folder: Path, name: str, sources: list[tuple[Path, bytes]]) -> Path:
    target = folder / name
    if not is_trusted_file(target) or not _mark_in_use(target):
        folder.mkdir(parents=True, exist_ok=True)
        _write_zip(target, sources)
        _mark_in_use(target)
        _remove_unused(folder)
    return target


def _mark_in_use(path: Path) -> bool:
    """Mark the file as in use until this process ends; False when the file does not exist."""
    if path not in _held:
        try:
            _held[path] = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        # A file system without locks never removes workers.
        with suppress(OSError):
            fcntl.flock(_held[path], fcntl.LOCK_SH)
    # Another process may have removed the file before we locked it.
    if not path.exists():
        os.close(_held.pop(path))
        return False
    with suppress(OSError):
        os.utime(path)
    return True


def _remove_unused(folder: Path) -> None:
    """Remove workers that were not used for a day, except the most recent ones and those in use."""
    cached, oldest_used_at = [], time.time() - UNUSED_S
    for path in folder.glob("worker-*.pyz"):
        # Another process may remove the same file.
        with suppress(OSError):
            cached.append((path.stat().st_mtime, path))
    for used_at, path in sorted(cached)[:-MAX_CACHED_WORKERS]:
        # Older versions of Corewise do not lock the workers that they use.
        if used_at > oldest_used_at:
            continue
        # Locking fails when the worker is in use.
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


def _write_zip(target: Path, sources: list[tuple[Path, bytes]]) -> None:
    # A process that was killed could not remove its file.
    remove_abandoned(".worker", target.parent)
    handle, aside = tempfile.mkstemp(dir=target.parent, prefix=build_owned_prefix(".worker"), suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            entry = b"import sys\nfrom corewise.measured.worker.main import main\nsys.exit(main())\n"
            archive.writestr(zipfile.ZipInfo("__main__.py", FIXED_TIME), entry)
            for path, data in sources:
                archive.writestr(zipfile.ZipInfo(f"corewise/{path}", FIXED_TIME), data)
        os.replace(aside, target)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
